"""Galleries: the failures shown are the worst ones, the confusions are counted right."""

import shutil
from collections import Counter

import numpy as np
import pytest
from safetensors.numpy import load_file

from oodml.data import load_dataset
from oodml.reporting.gallery import DEPTH, galleries, inspect_run
from oodml.reporting.report_data import read_report_data


@pytest.fixture(scope="module")
def run(tmp_path_factory, make_images, make_study):
    root = tmp_path_factory.mktemp("gallery")
    spec = {"name": "folder", "root": str(make_images(root / "images", [f"c{i:02d}" for i in range(16)], 5))}
    study = make_study(root / "study", spec, {"margin": 0.4}, 1, 1, dim=4, extras=False)
    return study.table.rows[0].path, load_dataset(spec), study


def slow_ranks(run):
    """Queries by brute force in float64: (how many wrong ones come before the first right, nearest) of each."""
    held = load_file(run / "embeddings.safetensors")
    x, labels, indices = held["embeddings"].astype(np.float64), held["labels"], held["indices"]
    ranks, nearest = {}, {}
    for q in range(len(x)):
        order = [int(j) for j in np.argsort(((x - x[q]) ** 2).sum(1), kind="stable") if j != q]
        nearest[q] = order[0]
        ranks[q] = next((place for place, j in enumerate(order[:DEPTH]) if labels[j] == labels[q]), DEPTH)
    return ranks, nearest, labels, indices


def test_the_worst_failures_come_first_one_a_class(run):
    path, dataset, _ = run
    item = inspect_run(path, dataset, shown=4)
    ranks, _, labels, indices = slow_ranks(path)
    worst = {}
    for q, rank in ranks.items():
        worst[labels[q]] = max(worst.get(labels[q], 0), rank)
    expected = sorted((rank for rank in worst.values() if rank > 0), reverse=True)[:4]
    position = {str(index): q for q, index in enumerate(indices)}
    assert [ranks[position[query["image"][0]]] for query in item["queries"]] == expected
    assert [query["first"] - 1 for query in item["queries"]] == expected
    assert len({query["image"][1] for query in item["queries"]}) == 4
    assert item["recall"] == pytest.approx(np.mean([rank == 0 for rank in ranks.values()]))


def test_neighbours_are_marked_right_exactly_when_they_share_the_class(run):
    path, dataset, _ = run
    for query in inspect_run(path, dataset, shown=8)["queries"]:
        distances = [found[4] for found in query["found"]]
        assert distances == sorted(distances)
        for _, name, file, right, _ in query["found"]:
            assert right == (name == query["image"][1])
            assert file.startswith(f"{name}/")
        assert not query["found"][0][3], "a gallery of failures begins with one"


def test_confusions_are_the_pairs_most_often_mistaken(run):
    path, dataset, _ = run
    ranks, nearest, labels, _ = slow_ranks(path)
    names = [dataset.classes[label] for label in labels]
    pairs = Counter(tuple(sorted((names[q], names[nearest[q]]))) for q in ranks if names[q] != names[nearest[q]])
    shown = inspect_run(path, dataset, shown=2)["confusions"]
    assert [count for count, *_ in shown] == sorted(pairs.values(), reverse=True)[: len(shown)]
    for count, first, second in shown:
        assert pairs[tuple(sorted((first[1], second[1])))] == count


def test_every_picture_shown_is_in_the_page(run):
    _, _, study = run
    found, notes = galleries(read_report_data(study.table, None, None, None))
    assert notes == []
    item = found["items"][0]
    held = found["images"][item["data"]]
    for query in item["queries"]:
        for image in [query["image"], *query["found"]]:
            assert held[image[0]].startswith("data:image/webp;base64,")


def test_a_data_set_that_has_changed_is_not_shown_wrongly(tmp_path, make_images, make_study):
    images = make_images(tmp_path / "images", ["a", "b", "c", "d"])
    study = make_study(tmp_path / "study", {"name": "folder", "root": str(images)}, {"m": 0.5}, 1, 1, extras=False)
    (images / "a" / "0.png").unlink()
    found, notes = galleries(read_report_data(study.table, None, None, None))
    assert found is None
    assert "has changed since the run" in notes[0]


def test_a_data_set_that_is_gone_leaves_the_report_whole(tmp_path, make_images, make_study):
    images = make_images(tmp_path / "images", ["a", "b", "c", "d"])
    study = make_study(tmp_path / "study", {"name": "folder", "root": str(images)}, {"m": 0.5}, 1, 1, extras=False)
    shutil.rmtree(images)
    found, notes = galleries(read_report_data(study.table, None, None, None))
    assert found is None
    assert notes[0].startswith("No images of m on shift-1")
