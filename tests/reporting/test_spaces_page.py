"""The page of a run's spaces: every query and neighbour has its image, maps carry thumbnails, figures are written."""

import base64
import gzip
import json
import re

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import oodml
from oodml.cli import (
    app,
    spaces,  # noqa: F401 - registers the command
)
from oodml.data import load_dataset
from oodml.reporting.chart import COLOURS
from oodml.reporting.spaces_page import CLASSES, PER_CLASS, QUERIES, ShownSpaces, choose_images, spaces_page
from oodml.reporting.thumbnails import pixels_of


def data_of(page):
    packed = re.search(r'id="packed-data">([^<]+)<', page.read_text(encoding="utf-8"))[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, make_images, nasty):
    names = [f"c{i:02d}" for i in range(8)] + [f"x{nasty}"]
    return load_dataset({"name": "folder", "root": str(make_images(tmp_path_factory.mktemp("images"), names, 5))})


def write(dataset, folder, figures=None, gap=()):
    rng = np.random.default_rng(0)
    indices = np.arange(len(dataset))
    rows = {name: rng.normal(size=(len(indices), 6)).astype(np.float32) for name in ("φ", "φ*")}
    mapped, queries = choose_images(dataset.labels)
    found = {name: [[(int((q + 7) % 45), 0.5), (int((q + 14) % 45), 0.75)] for q in queries] for name in rows}
    page = folder / "spaces.html"
    shown = ShownSpaces("Spaces", "a run", dataset, rows, indices, found, mapped, queries, gap)
    assert spaces_page(shown, page, figures) == page
    return page, rows, found, mapped, queries


def test_what_is_shown_is_spread_over_the_classes():
    labels = np.repeat(np.arange(40), 50)
    mapped, queries = choose_images(labels)
    assert len(mapped) == CLASSES * PER_CLASS
    assert len(np.unique(mapped)) == len(mapped)
    assert len(np.unique(labels[mapped])) == CLASSES
    assert labels[queries][[0, -1]].tolist() == [0, 39]
    assert len(np.unique(labels[queries])) == QUERIES
    few, asked = choose_images(np.repeat([3, 9], 4))
    assert (len(few), len(asked)) == (8, 2)


def test_galleries_and_maps_hold_the_pictures_they_name(dataset, tmp_path):
    page, _, found, mapped, queries = write(dataset, tmp_path)
    data = data_of(page)
    gallery = data["galleries"]
    images = gallery["images"][dataset.fingerprint]
    assert len(gallery["neighbours"]) == len(queries)
    for q, shown in enumerate(gallery["neighbours"]):
        assert shown["image"] == [
            str(queries[q]),
            dataset.classes[dataset.labels[queries[q]]],
            dataset.path(queries[q]),
        ]
        assert shown["image"][0] in images
        for name, row in shown["spaces"]:
            assert [(int(each[0]), each[4]) for each in row] == found[name][q]
            assert all(each[0] in images for each in row)
    assert [chart["id"] for chart in data["charts"]] == ["map-1", "map-2"]
    for chart in data["charts"]:
        traces = chart["views"][""]["traces"]
        assert sum(len(trace["images"]) for trace in traces) == len(mapped)
        for trace in traces:
            frame = pixels_of(trace["images"][0])[1, 1]
            own = [int(trace["marker"]["color"][i : i + 2], 16) for i in (1, 3, 5)]
            assert np.abs(frame.astype(int) - own).max() < 60, (
                "the frame has the colour of the class, but for the codec"
            )
    assert {trace["marker"]["color"] for trace in traces} <= set(COLOURS)


def test_names_are_text_and_figures_are_written(dataset, tmp_path, nasty):
    gap = [{"space": f"φ {nasty}", "dim": 6, "train": 0.5, "test": 0.4, "gap": -0.1}]
    page, *_, queries = write(dataset, tmp_path, figures=tmp_path / "figures", gap=gap)
    text = page.read_text(encoding="utf-8")
    assert nasty not in text
    assert "−10.0" in text and "is 50.0 % on the classes it was fitted on and 40.0 %" in text
    names = [f"map-{i}" for i in (1, 2)] + [f"neighbours-{i + 1}" for i in range(len(queries))]
    written = {path.name for path in (tmp_path / "figures").iterdir()}
    assert written == {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")}
    with Image.open(tmp_path / "figures" / "map-1.png") as drawn:
        assert len(drawn.convert("RGB").getcolors(1 << 24)) > 100, "thumbnails are on the map"


def test_the_command_makes_the_page_of_a_run(tmp_path, make_images):
    spec = {"name": "folder", "root": str(make_images(tmp_path / "images", [f"c{i:02d}" for i in range(12)]))}
    common = {"dataset": spec, "method": "sharing", "backbone": "tiny", "embedding_dim": 8, "batch_size": 12}
    run = {"train": "head", "steps": 2, "eval_every": 2, "selection": "last", "metrics": ("recall@1",), "views": 0}
    oodml.train({**common, **run, "samples_per_class": 4, "quiet": True, "out": str(tmp_path / "run")})
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["spaces", str(tmp_path / "run"), "--out", str(page), "--gap"])
    assert done.exit_code == 0, done.output
    assert "shared (weights drawn anew)" in done.output
    data = data_of(page)
    assert len(data["charts"]) == 4
    assert [name for name, _ in data["galleries"]["neighbours"][0]["spaces"]] == [
        *("embedding", "discriminative", "shared", "features")
    ]
    for query in data["galleries"]["neighbours"]:
        assert all(found[1] != query["image"][1] for _, row in query["spaces"] for found in row)


def test_a_browser_draws_the_pictures(dataset, tmp_path, open_page):
    path, rows, _, mapped, queries = write(dataset, tmp_path)
    page = open_page(390, 800, file=path)
    assert page.locator("[data-chart='map-1'] .imagelayer image").count() == len(mapped)
    page.locator("[data-chart='map-1'] .legendtoggle").first.click()  # a class is hidden with its images
    page.wait_for_function(
        f"document.querySelectorAll(\"[data-chart='map-1'] .imagelayer image\").length < {len(mapped)}"
    )
    assert page.locator("#gallery .asked").count() == len(queries)
    assert page.locator("#gallery .query img").count() == len(queries) * len(rows) * 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert not page.problems
    page.context.close()
