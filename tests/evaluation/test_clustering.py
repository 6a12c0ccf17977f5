"""Clustering scores against scikit-learn, pytorch-metric-learning, and pair counting by brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

import oodml
from oodml import OodmlError
from oodml.evaluation.clustering import ami, clustering_scores, contingency, f1, nmi, purity
from oodml.evaluation.kmeans import kmeans

labellings = st.integers(2, 40).flatmap(
    lambda n: st.tuples(*(st.lists(st.integers(0, 8), min_size=n, max_size=n) for _ in range(2)))
)


def tables(clusters, classes):
    return contingency(torch.tensor(clusters), torch.tensor(classes))


def same_partition(u, v):
    return len(set(zip(u, v, strict=True))) == len(set(u)) == len(set(v))


def pair_counting_f1(clusters, classes):
    pairs = list(itertools.combinations(range(len(classes)), 2))
    predicted = [clusters[i] == clusters[j] for i, j in pairs]
    true = [classes[i] == classes[j] for i, j in pairs]
    hits = sum(p and t for p, t in zip(predicted, true, strict=True))
    if hits == 0:
        return 0.0
    precision, recall = hits / sum(predicted), hits / sum(true)
    return 2 * precision * recall / (precision + recall)


@settings(deadline=None, max_examples=150)
@given(labellings)
def test_scores_match_scikit_learn_and_brute_force(pair):
    clusters, classes = pair
    table = tables(clusters, classes)
    if same_partition(clusters, classes):
        assert nmi(table) == ami(table) == f1(table) == purity(table) == 1.0
        return
    assert nmi(table) == pytest.approx(sk.normalized_mutual_info_score(classes, clusters), abs=1e-9)
    assert ami(table) == pytest.approx(sk.adjusted_mutual_info_score(classes, clusters), abs=1e-8)
    assert f1(table) == pytest.approx(pair_counting_f1(clusters, classes), abs=1e-12)
    by_cluster = [[y for c, y in zip(clusters, classes, strict=True) if c == k] for k in set(clusters)]
    assert purity(table) == pytest.approx(sum(max(map(ys.count, ys)) for ys in by_cluster) / len(classes))


def test_expected_information_holds_with_thousands_of_clusters():
    generator = torch.Generator().manual_seed(3)
    clusters, classes = (torch.randint(0, 700, (3000,), generator=generator) for _ in range(2))
    classes = torch.where(torch.rand(3000, generator=generator) < 0.3, clusters, classes)
    table = contingency(clusters, classes)
    assert ami(table) == pytest.approx(sk.adjusted_mutual_info_score(classes, clusters), abs=1e-9)
    assert nmi(table) == pytest.approx(sk.normalized_mutual_info_score(classes, clusters), abs=1e-9)


def test_sizes_that_need_several_blocks_give_the_same_expectation(monkeypatch):
    clusters, classes = torch.arange(400) % 7, (torch.arange(400) ** 2) % 11
    whole = ami(contingency(clusters, classes))
    monkeypatch.setattr("oodml.evaluation.clustering._CELLS", 50)
    assert ami(contingency(clusters, classes)) == pytest.approx(whole, abs=1e-12)


def test_separated_classes_score_one_and_noise_scores_low():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(12).repeat_interleave(10)
    centres = 50 * torch.randn(12, 8, generator=generator)
    tight = centres[labels] + 0.01 * torch.randn(120, 8, generator=generator)
    scores = clustering_scores(tight, labels, ["nmi", "ami", "f1", "purity"])
    assert scores == {"nmi": 1.0, "ami": 1.0, "f1": 1.0, "purity": 1.0}
    noise = clustering_scores(torch.randn(120, 8, generator=generator), labels, ["ami", "f1"])
    assert abs(noise["ami"]) < 0.1 and noise["f1"] < 0.2


@pytest.mark.parametrize(
    ("n", "labels"), [(1, [0]), (5, [0, 0, 0, 0, 0]), (4, [0, 1, 2, 3])], ids=["one point", "one class", "K = N"]
)
def test_edges_have_an_answer(n, labels):
    x = torch.arange(n, dtype=torch.float32)[:, None].repeat(1, 3)
    scores = clustering_scores(x, torch.tensor(labels), ["nmi", "ami", "f1", "purity"])
    assert scores == {"nmi": 1.0, "ami": 1.0, "f1": 1.0, "purity": 1.0}


def test_collapsed_embeddings_give_finite_scores():
    scores = clustering_scores(torch.ones(20, 4), torch.arange(20) % 5, ["nmi", "ami", "f1", "purity"])
    assert all(math.isfinite(v) for v in scores.values())
    assert scores["nmi"] == 0.0 and scores["purity"] == pytest.approx(0.2)


def test_repeated_calls_are_bit_equal():
    x = torch.randn(300, 16, generator=torch.Generator().manual_seed(5))
    labels = torch.arange(300) % 30
    names = ["nmi", "ami", "f1", "purity"]
    assert clustering_scores(x, labels, names, seed=4) == clustering_scores(x, labels, names, seed=4)


def test_an_unknown_metric_is_named_with_its_nearest_match():
    with pytest.raises(OodmlError, match="nmi"):
        clustering_scores(torch.ones(2, 2), torch.tensor([0, 1]), ["nmii"])


def test_scores_of_the_same_clusters_agree_with_pytorch_metric_learning():
    calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 20, 600)
    points = (rng.normal(size=(20, 16))[labels] + 0.8 * rng.normal(size=(600, 16))).astype(np.float32)

    def ours(x, nmb_clusters):
        return kmeans(torch.as_tensor(x), nmb_clusters, seed=0).labels

    peer = calculator.AccuracyCalculator(include=("NMI", "AMI"), kmeans_func=ours, device=torch.device("cpu"))
    theirs = peer.get_accuracy(torch.from_numpy(points), torch.from_numpy(labels))
    scores = oodml.evaluate(points, labels, metrics=["nmi", "ami"], seed=0)
    assert 0.3 < scores["nmi"] < 0.999
    assert scores["nmi"] == pytest.approx(theirs["NMI"], abs=1e-6)
    assert scores["ami"] == pytest.approx(theirs["AMI"], abs=1e-6)
