"""What a chart shows, apart from how it is drawn: the page and the printed figures are two drawings of one `Chart`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray

# Okabe and Ito's colours without the yellow and the black, which are invisible on a light or a dark page; markers and
# dashes distinguish the methods in print and without colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#A830F0", "#9C5540")
GREY = "#808891"  # readable on a light and on a dark page
INK, LIGHT_GREY = "#333333", "#d9dbdf"  # on paper
MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot")

Kind = Literal["line", "points", "bars"]
Values = Sequence[float] | Sequence[str] | NDArray[Any]


@dataclass(frozen=True)
class Style:
    """Colour, marker and dash of a series; no two of the first 32 methods share all three."""

    colour: str
    marker: str
    dash: str

    @classmethod
    def of(cls, place: int | None) -> Style:
        """The style of the method at `place`; None: grey and dotted, for what is there to compare with."""
        if place is None:
            return cls(GREY, "circle-open", "dot")
        turn, place = divmod(place, len(COLOURS))
        return cls(COLOURS[place], MARKERS[(place + turn) % len(MARKERS)], DASHES[turn % len(DASHES)])


@dataclass(frozen=True)
class Series:
    """Marks under one legend entry. Series of the same name are hidden together.

    low, high   a band around a line, error bars on points and bars
    hover       what a mark says: mostly the run behind it; "" leaves it to the value
    style       place in the palette, None for grey
    listed      whether it has a legend entry
    faint       background marks, such as the single runs behind a mean
    images    data URLs of small images drawn over the marks of a map
    """

    name: str
    x: Values
    y: Values
    kind: Kind = "line"
    low: Values | None = None
    high: Values | None = None
    hover: Sequence[str] | None = None
    style: int | None = None
    listed: bool = True
    faint: bool = False
    images: Sequence[str] | None = None


@dataclass(frozen=True)
class View:
    """One setting of a chart's switches."""

    series: list[Series]
    x_label: str
    y_label: str
    log_y: bool = False
    note: str = ""
    bare: bool = False  # a map: positions have no meaning of their own, so no axes are drawn


Views = dict[tuple[str, ...], View]


@dataclass(frozen=True)
class Chart:
    """A figure with switches: `views` has one entry for every combination of their values, in the switches' order.

    The first value of every switch is what is shown first and what is printed.
    """

    id: str
    title: str
    views: Views
    switches: Mapping[str, Sequence[str]] = field(default_factory=dict)
    caption: str = ""
    width: Literal["whole", "half", "third"] = "whole"
    follows: bool = False  # the chart above it has the same switches, so it shows none of its own
    height: int = 400

    @property
    def first(self) -> View:
        return self.views[tuple(values[0] for values in self.switches.values())]
