"""The spaces inside a run: neighbours across classes and maps with thumbnails (Sharing Matters, figures 2, 3, 7, 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from oodml._files import atomic_file
from oodml.data import Dataset
from oodml.reporting.chart import COLOURS, Chart, Series, View
from oodml.reporting.draw_matplotlib import save_figure, write_figures
from oodml.reporting.page import Section, page_html
from oodml.reporting.split_figures import tsne
from oodml.reporting.thumbnails import framed_thumbnail, pixels_of, thumbnails

CLASSES = len(COLOURS)  # on a map: as many as have a colour of their own
PER_CLASS = 30  # images per class on a map
QUERIES = 6
NEIGHBOURS = 5

Found = Sequence[tuple[int, float]]  # places of images and their distances from a query, nearest first


def choose_images(labels: NDArray[np.int64], seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions (in `labels`) of the images on the maps, and of the queries: classes spread evenly over those there."""
    rng = np.random.default_rng(seed)
    classes = np.unique(labels)

    def spread(count: int) -> NDArray[np.int64]:
        return classes[np.unique(np.linspace(0, len(classes) - 1, min(count, len(classes))).round().astype(int))]

    members = [rng.permutation(np.flatnonzero(labels == label))[:PER_CLASS] for label in spread(CLASSES)]
    queries = [rng.choice(np.flatnonzero(labels == label)) for label in spread(QUERIES)]
    return np.concatenate(members), np.asarray(queries, dtype=np.int64)


@dataclass(frozen=True)
class ShownSpaces:
    """The content of the page of a run's spaces. A place is a position in `indices`, not in the dataset."""

    title: str
    subtitle: str
    dataset: Dataset
    rows: Mapping[str, NDArray[np.float32]]  # embeddings (n, d) of the images `indices`, by the name of their space
    indices: NDArray[np.int64]
    neighbours: Mapping[str, Sequence[Found]]  # by space, of each query: its neighbours in other classes
    mapped: NDArray[np.int64]  # places of the images on the maps
    queries: NDArray[np.int64]  # and of those whose neighbours are shown
    gap: Sequence[Mapping[str, Any]] = ()  # rows of `generalisation_gap`, where they were computed

    def about(self, place: int) -> list[str]:
        """What the page shows about an image: its number, class and file."""
        index = int(self.indices[place])
        return [str(index), self.dataset.classes[self.dataset.labels[index]], self.dataset.path(index)]

    @property
    def answer(self) -> list[str]:
        """The first sentences of the page."""
        sentences = [f"{len(self.indices):,} images in {len(self.rows)} spaces of one run: {', '.join(self.rows)}."]
        if self.gap:
            first = self.gap[0]
            sentences.append(
                f"Recall@1 in the {first['space']} is {100 * first['train']:.1f} % on the classes it was fitted on and "
                f"{100 * first['test']:.1f} % on those it has not seen."
            )
        return sentences


def spaces_page(shown: ShownSpaces, out: str | Path, figures: str | Path | None = None) -> Path:
    """Write the page, and with `figures` its gallery and maps as PNG and SVG into that folder."""
    gallery, notes = _gallery(shown)
    maps = _map_charts(shown)
    sections = [_gallery_section(), _map_section(maps), *_gap_section(shown.gap)]
    page = Path(out)
    with atomic_file(page) as temporary:
        text = page_html(shown.title, [*shown.answer, *notes], shown.subtitle, sections, gallery)
        temporary.write_text(text, encoding="utf-8")
    if figures is not None:
        write_figures(maps, Path(figures))
        images = gallery["images"][shown.dataset.fingerprint]
        for number, query in enumerate(gallery["neighbours"]):
            save_figure(_printed_query(query, images), Path(figures) / f"neighbours-{number + 1}")
    return page


def _gallery(shown: ShownSpaces) -> tuple[dict[str, Any], list[str]]:
    """The queries and their neighbours as the page reads them, with their images, and notes on what is missing."""
    found = (place for each in shown.neighbours.values() for row in each for place, _ in row)
    key, dataset = shown.dataset.fingerprint, shown.dataset
    wanted = {(key, int(shown.indices[place])): dataset for place in {*shown.queries.tolist(), *map(int, found)}}
    images, notes = thumbnails(wanted)
    neighbours = [
        {
            "image": shown.about(query),
            "spaces": [
                [name, [[*shown.about(place), False, round(distance, 4)] for place, distance in each[number]]]
                for name, each in shown.neighbours.items()
            ],
        }
        for number, query in enumerate(shown.queries)
    ]
    return {"data": key, "images": images, "neighbours": neighbours}, notes


def _gallery_section() -> Section:
    lead = (
        "For each query the nearest images of other classes, space by space. They show what an embedding encodes in "
        "addition to the class: a pose, a colour, a background. Point at an image for file and distance."
    )
    return Section("galleries", "Neighbours of other classes", lead, body='<div id="gallery"></div>')


def _map_section(maps: list[Chart]) -> Section:
    lead = (
        f"t-SNE of the same images in each space, up to {PER_CLASS} of up to {CLASSES} classes; the colour of a frame "
        "is the class. Compact groups of one colour: the space separates the classes. Mixed colours that look alike: "
        "it encodes what the classes share."
    )
    return Section("maps", "Maps", lead, charts=maps)


def _gap_section(gap: Sequence[Mapping[str, Any]]) -> list[Section]:
    if not gap:
        return []
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("space", "size", "train", "test", "gap"))
    cells = "".join(
        f"<tr><td>{escape(row['space'])}</td><td>{row['dim']}</td><td>{100 * row['train']:.1f}</td>"
        f"<td>{100 * row['test']:.1f}</td><td>{_signed(100 * row['gap'])}</td></tr>"
        for row in gap
    )
    table = f'<div class="scroll"><table class="data" data-name="gap"><thead><tr>{heads}</tr></thead>'
    lead = "Recall@1 on the classes the run was fitted on and on those it has not seen, in per cent."
    return [Section("gap", "The generalisation gap", lead, body=f"{table}<tbody>{cells}</tbody></table></div>")]


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _map_charts(shown: ShownSpaces) -> list[Chart]:
    dataset, images = shown.dataset, shown.indices[shown.mapped]
    labels = dataset.labels[images]
    colour_of = {label: place for place, label in enumerate(np.unique(labels))}
    framed = [framed_thumbnail(dataset, int(i), COLOURS[colour_of[dataset.labels[i]]]) for i in images]
    charts = []
    for number, (space, embeddings) in enumerate(shown.rows.items()):
        place = tsne(embeddings[shown.mapped])
        series = []
        for label, style in colour_of.items():
            here = np.flatnonzero(labels == label)
            texts = ["\n".join(shown.about(shown.mapped[i])[1:]) for i in here]
            x, y = place[here].T
            name = dataset.classes[label]
            series.append(Series(name, x, y, "points", hover=texts, style=style, images=[framed[i] for i in here]))
        view = View(series, "", "", bare=True)
        charts.append(Chart(f"map-{number + 1}", space, {(): view}, width="half", height=560))
    return charts


def _printed_query(query: Mapping[str, Any], images: Mapping[str, str]) -> Figure:
    """One query and its neighbours, one row per space."""
    spaces = query["spaces"]
    columns = 1 + max(len(found) for _, found in spaces)
    figure = Figure(figsize=(1.1 * columns + 0.9, 1.15 * len(spaces)), layout="constrained")
    axes = figure.subplots(len(spaces), columns, squeeze=False)
    for row, (name, found) in zip(axes, spaces, strict=True):
        for axis, about in zip(row, [query["image"], *found], strict=False):
            if about[0] in images:
                axis.imshow(pixels_of(images[about[0]]))
        for axis in row:
            axis.set_xticks([])
            axis.set_yticks([])
            axis.spines[:].set_visible(False)
        row[0].set_ylabel(name, fontsize=8)
    axes[0, 0].set_title("query", fontsize=8)
    return figure
