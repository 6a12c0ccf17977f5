"""NMI and AMI against pytorch-metric-learning's AccuracyCalculator, on the same clusters."""

import numpy as np
import pytest
import torch

import oodml
from oodml.evaluation.kmeans import kmeans

calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")


def test_scores_of_the_same_clusters_agree():
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
