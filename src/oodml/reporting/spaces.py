"""The spaces inside a run: neighbours across classes and maps with thumbnails (Sharing Matters, figures 2, 3, 7, 8)."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageOps

from oodml._files import atomic_file
from oodml.data import Dataset
from oodml.reporting.chart import COLOURS, Chart, Series, View
from oodml.reporting.gallery import thumbnails
from oodml.reporting.maps import flat
from oodml.reporting.page import Section, page_html
from oodml.reporting.printed import picture_of, save_figure, write_figures

CLASSES = len(COLOURS)  # on a map: as many as have a colour of their own
A_CLASS = 30  # pictures of a class on a map
QUERIES = 6
NEIGHBOURS = 5
_SIDE, _FRAME = 44, 4  # pixels of a thumbnail on a map, and of the frame in the colour of its class

Found = Sequence[tuple[int, float]]  # places of images and their distances from a query, nearest first


def choose_shown(labels: NDArray[np.int64], seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places (in `labels`) of the pictures on the maps, and of the queries: classes spread evenly over those there."""
    rng = np.random.default_rng(seed)
    classes = np.unique(labels)

    def spread(count: int) -> NDArray[np.int64]:
        return classes[np.unique(np.linspace(0, len(classes) - 1, min(count, len(classes))).round().astype(int))]

    members = [rng.permutation(np.flatnonzero(labels == label))[:A_CLASS] for label in spread(CLASSES)]
    queries = [rng.choice(np.flatnonzero(labels == label)) for label in spread(QUERIES)]
    return np.concatenate(members), np.asarray(queries, dtype=np.int64)


def spaces_page(
    title: str,
    subtitle: str,
    dataset: Dataset,
    rows: Mapping[str, NDArray[np.float32]],
    indices: NDArray[np.int64],
    neighbours: Mapping[str, Sequence[Found]],
    mapped: NDArray[np.int64],
    queries: NDArray[np.int64],
    out: str | Path,
    figures: str | Path | None = None,
    gap: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write the page, and with `figures` its gallery and maps as PNG and SVG.

    Args:
        rows: embeddings (n, d) of the images `indices` of the data set, by the name of their space.
        neighbours: for each space and each of the `queries` (places in `indices`) what it finds in other classes.
        mapped: places of the images on the maps.
        gap: rows of `generalisation_gap`, where they were computed.
    """
    wanted = {*queries.tolist(), *(int(i) for found in neighbours.values() for row in found for i, _ in row)}
    pictures, notes = thumbnails({(dataset.fingerprint, int(indices[place])): dataset for place in wanted})
    gallery: dict[str, Any] = {
        "data": dataset.fingerprint,
        "pictures": pictures,
        "neighbours": [
            {
                "picture": _about(dataset, int(indices[query])),
                "spaces": [
                    [name, [[*_about(dataset, int(indices[i])), False, round(d, 4)] for i, d in found[q]]]
                    for name, found in neighbours.items()
                ],
            }
            for q, query in enumerate(queries)
        ],
    }
    maps = _map_charts(dataset, rows, indices, mapped)
    sections = [_gallery_section(), _map_section(maps), *_gap_section(gap)]
    words = [f"{len(indices):,} pictures in {len(rows)} spaces of one run: {', '.join(rows)}.", *notes]
    page = Path(out)
    with atomic_file(page) as temporary:
        temporary.write_text(page_html(title, words, subtitle, sections, gallery), encoding="utf-8")
    if figures is not None:
        write_figures(maps, Path(figures))
        for number, query in enumerate(gallery["neighbours"]):
            save_figure(
                _printed_query(query, pictures[dataset.fingerprint]), Path(figures) / f"neighbours-{number + 1}"
            )
    return page


def _about(dataset: Dataset, index: int) -> list[str]:
    """What the page says of a picture: its number, class and file."""
    return [str(index), dataset.classes[dataset.labels[index]], dataset.path(index)]


def _gallery_section() -> Section:
    lead = (
        "For each query the nearest pictures of other classes, space by space. What an embedding finds there tells "
        "what it knows beside the classes: a pose, a colour, a background. Point at a picture for file and distance."
    )
    return Section("galleries", "Neighbours of other classes", lead, body='<div id="gallery"></div>')


def _map_section(maps: list[Chart]) -> Section:
    lead = (
        f"t-SNE of the same pictures in each space, up to {A_CLASS} of up to {CLASSES} classes; the colour of a frame "
        "is the class. Compact groups of one colour: the space knows the classes. Mixed colours that look alike: it "
        "knows what they share."
    )
    return Section("maps", "Maps", lead, charts=maps)


def _gap_section(gap: Sequence[Mapping[str, Any]]) -> list[Section]:
    if not gap:
        return []
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("space", "size", "train", "test", "gap"))
    cells = "".join(
        f"<tr><td>{escape(row['space'])}</td><td>{row['dim']}</td><td>{100 * row['train']:.1f}</td>"
        f"<td>{100 * row['test']:.1f}</td><td>{100 * row['gap']:+.1f}</td></tr>"
        for row in gap
    )
    table = f'<div class="scroll"><table class="data" data-name="gap"><thead><tr>{heads}</tr></thead>'
    lead = "Recall@1 on the classes the run was fitted on and on those it has not seen, in per cent."
    return [Section("gap", "The generalisation gap", lead, body=f"{table}<tbody>{cells}</tbody></table></div>")]


def _map_charts(
    dataset: Dataset, rows: Mapping[str, NDArray[np.float32]], indices: NDArray[np.int64], mapped: NDArray[np.int64]
) -> list[Chart]:
    labels = dataset.labels[indices[mapped]]
    colour_of = {label: place for place, label in enumerate(np.unique(labels))}
    framed = [_framed(dataset, int(indices[i]), COLOURS[colour_of[dataset.labels[indices[i]]]]) for i in mapped]
    charts = []
    for number, (space, embeddings) in enumerate(rows.items()):
        place = flat(embeddings[mapped])
        series = []
        for label, style in colour_of.items():
            here = np.flatnonzero(labels == label)
            texts = ["\n".join(_about(dataset, int(indices[mapped[i]]))[1:]) for i in here]
            shown = [framed[i] for i in here]
            x, y = place[here].T
            name = dataset.classes[label]
            series.append(Series(name, x, y, "points", hover=texts, style=style, pictures=shown))
        view = View(series, "", "", bare=True)
        charts.append(Chart(f"map-{number + 1}", space, {(): view}, width="half", height=560))
    return charts


def _framed(dataset: Dataset, index: int, colour: str) -> str:
    """A square thumbnail inside a frame, as a data URL; grey where the picture cannot be read."""
    try:
        picture = dataset.source.image(index, shrink_to=_SIDE).convert("RGB")
    except (OSError, ValueError):
        picture = Image.new("RGB", (_SIDE, _SIDE), "#808891")
    square = ImageOps.fit(picture, (_SIDE, _SIDE), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    ImageOps.expand(square, _FRAME, colour).save(buffer, "WEBP", quality=60, method=2)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _printed_query(query: Mapping[str, Any], pictures: Mapping[str, str]) -> Figure:
    """One query and its neighbours, a row a space."""
    spaces = query["spaces"]
    columns = 1 + max(len(found) for _, found in spaces)
    figure = Figure(figsize=(1.1 * columns + 0.9, 1.15 * len(spaces)), layout="constrained")
    axes = figure.subplots(len(spaces), columns, squeeze=False)
    for row, (name, found) in zip(axes, spaces, strict=True):
        for axis, about in zip(row, [query["picture"], *found], strict=False):
            if about[0] in pictures:
                axis.imshow(picture_of(pictures[about[0]]))
        for axis in row:
            axis.set_xticks([])
            axis.set_yticks([])
            axis.spines[:].set_visible(False)
        row[0].set_ylabel(name, fontsize=8)
    axes[0, 0].set_title("query", fontsize=8)
    return figure
