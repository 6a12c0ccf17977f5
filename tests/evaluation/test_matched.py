"""Matched recall against the exact expectation, by listing every subset of a tiny set."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import oodml
from oodml.evaluation import find_neighbours
from oodml.evaluation.matched import matched_recall


def expectation(x: np.ndarray, labels: np.ndarray, classes: int, images: int) -> float:
    """Mean recall@1 over every choice of classes and of images in them, float64."""
    far = ((x[:, None].astype(np.float64) - x[None]) ** 2).sum(-1)
    np.fill_diagonal(far, np.inf)
    members = [np.flatnonzero(labels == c).tolist() for c in np.unique(labels)]
    means = []
    for chosen in itertools.combinations(members, classes):
        choices = [list(itertools.combinations(m, min(images, len(m)))) for m in chosen]
        recalls = []
        for picks in itertools.product(*choices):
            rows = np.array(sorted(itertools.chain(*picks)))
            inside = far[np.ix_(rows, rows)]
            nearest = rows[
                [min(range(len(rows)), key=lambda j, i=i: (inside[i, j], rows[j])) for i in range(len(rows))]
            ]
            recalls.append(float((labels[nearest] == labels[rows]).mean()))
        means.append(np.mean(recalls))  # every choice of classes is equally likely, however many images they have
    return float(np.mean(means))


def tiny(sizes: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return (rng.normal(size=(len(sizes), 3))[labels] + rng.normal(size=(len(labels), 3))).astype(np.float32), labels


@pytest.mark.parametrize("match", [(3, 2), (4, 3), (2, 2), (5, 2)])
def test_draws_agree_with_the_exact_expectation_within_their_error(match: tuple[int, int]) -> None:
    x, labels = tiny([4, 3, 4, 3, 4])
    exact = expectation(x, labels, *match)
    neighbours = find_neighbours(torch.from_numpy(x), None, 17)
    got = matched_recall(torch.from_numpy(x), torch.from_numpy(labels), match, neighbours, draws=2000)
    assert 0 < got.standard_error < 0.01
    assert abs(got.value - exact) < 4 * got.standard_error


@pytest.mark.parametrize("classes", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("depth", [1, 3, 15])
def test_whole_classes_have_a_closed_form_whatever_the_length_of_the_lists(classes: int, depth: int) -> None:
    x, labels = tiny([4, 3, 4, 1, 4], seed=3)
    # With classes of different size the mean over subsets weights queries unequally; the closed form weights
    # every query alike, so the oracle averages success over subsets query by query.
    far = ((x[:, None].astype(np.float64) - x[None]) ** 2).sum(-1)
    np.fill_diagonal(far, np.inf)
    success = []
    for i in range(len(x)):
        others = [c for c in range(5) if c != labels[i]]
        outcomes = []
        for chosen in itertools.combinations(others, classes - 1):
            inside = [j for j in range(len(x)) if labels[j] in (*chosen, labels[i]) and j != i]
            nearest = min(inside, key=lambda j: (far[i, j], j), default=None)
            outcomes.append(nearest is not None and labels[nearest] == labels[i])
        success.append(np.mean(outcomes))
    neighbours = find_neighbours(torch.from_numpy(x), None, depth)
    got = matched_recall(torch.from_numpy(x), torch.from_numpy(labels), (classes, 4), neighbours)
    assert got.standard_error == 0 and "exact" in got.note
    assert got.value == pytest.approx(float(np.mean(success)), abs=1e-12)


def test_lists_too_short_for_a_draw_are_searched_again() -> None:
    x, labels = (torch.from_numpy(each) for each in tiny([6] * 12, seed=1))
    deep = matched_recall(x, labels, (3, 2), find_neighbours(x, None, 71), seed=5)
    short = matched_recall(x, labels, (3, 2), find_neighbours(x, None, 1), seed=5)
    assert deep == short


def test_everything_kept_is_plain_recall() -> None:
    x, labels = tiny([4, 3, 5, 2])
    scores = oodml.evaluate(x, labels, ["recall@1"], match=(4, 5))
    assert scores["recall@1:matched"] == pytest.approx(scores["recall@1"], abs=1e-12)
    assert scores["recall@1:matched:se"] == 0


def test_scores_are_the_same_each_time_and_say_how_they_were_made() -> None:
    x, labels = tiny([8] * 10, seed=2)
    first, second = (oodml.evaluate(x, labels, "recall@1", match=(5, 4), seed=3) for _ in range(2))
    assert first == second and list(first) == ["recall@1", "recall@1:matched", "recall@1:matched:se"]
    assert "5 of 10 classes, 4 images" in first.notes["matched"] and "draws" in first.notes["matched"]
    assert oodml.evaluate(x, labels, "recall@1", match=(5, 4), seed=4) != first


def test_classes_smaller_than_asked_take_part_with_all_they_have_and_are_noted() -> None:
    x, labels = tiny([8, 8, 3, 8])
    assert "1 classes have fewer" in oodml.evaluate(x, labels, match=(3, 5)).notes["matched"]


@pytest.mark.parametrize("match", [(0, 5), (11, 5), (3, 1), (3, 0), 7, ("a", 2), (1, 2, 3)])
def test_impossible_sizes_are_explained(match: object) -> None:
    x, labels = tiny([8] * 10)
    with pytest.raises(oodml.OodmlError, match="match="):
        oodml.evaluate(x, labels, match=match)


def test_matched_needs_a_size_and_one_set() -> None:
    x, labels = tiny([4, 4])
    with pytest.raises(oodml.OodmlError, match="needs match"):
        oodml.evaluate(x, labels, "recall@1:matched")
    with pytest.raises(oodml.OodmlError, match="one set"):
        oodml.evaluate(x, labels, match=(2, 2), gallery=x, gallery_labels=labels)
    with pytest.raises(oodml.OodmlError, match="matched:se needs match"):
        oodml.evaluate(x, labels, "recall@1:matched:se")
    assert "recall@1:matched:se" in oodml.evaluate(x, labels, "recall@1:matched:se", match=(2, 2))


@pytest.mark.parametrize("match", [None, (2, 2)])
def test_a_misspelt_matched_score_is_refused_with_the_nearest(match: tuple[int, int] | None) -> None:
    x, labels = tiny([4, 4])
    with pytest.raises(oodml.OodmlError, match=r"'recall@1:matchedfoo'\. Did you mean 'recall@1:matched'"):
        oodml.evaluate(x, labels, "recall@1:matchedfoo", match=match)
