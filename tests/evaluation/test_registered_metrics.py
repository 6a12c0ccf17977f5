"""Metrics of a user in `evaluate` and in the workers of a study; tests/training has them in a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import oodml
from oodml import OodmlError
from oodml.evaluation.metrics import METRICS
from oodml.study.engines.registered import register_all, registrations

X, LABELS = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), ["b", "a"] * 10


def share_of_first_class(embeddings: torch.Tensor, labels: torch.Tensor) -> float:
    """A metric whose value shows what it was given."""
    assert embeddings.dtype == torch.float32 and labels.dtype == torch.int64
    return float((labels == 0).double().mean() * embeddings.shape[1])


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    oodml.register_metric("mine", share_of_first_class)
    yield
    METRICS._records.pop("mine", None)


def test_a_registered_metric_is_scored_next_to_the_others() -> None:
    scores = oodml.evaluate(X, LABELS, ["mine", "recall@1"])
    assert list(scores) == ["mine", "recall@1"] and scores["mine"] == 2.0
    assert "mine" not in oodml.evaluate(X, LABELS)  # not a default


def test_what_a_registered_metric_cannot_score_is_explained() -> None:
    with pytest.raises(OodmlError, match="'mine' is defined for one set: leave the gallery out"):
        oodml.evaluate(X, LABELS, "mine", gallery=X, gallery_labels=LABELS)
    with pytest.raises(OodmlError, match="mine needs classes: give one label per row"):
        oodml.evaluate(X, [{1}, {2}] * 10, "mine")
    with pytest.raises(OodmlError, match="Did you mean 'mine'"):
        oodml.evaluate(X, LABELS, "minr")
    oodml.register_metric("mine", lambda embeddings, labels: embeddings, replace=True)
    with pytest.raises(OodmlError, match="'mine' must return one number, got Tensor"):
        oodml.evaluate(X, LABELS, "mine")


@pytest.mark.parametrize("name", ["recall@3", "nmi", "fnmr@fmr", "recall@1:matched"])
def test_names_of_the_package_are_refused(name: str) -> None:
    with pytest.raises(OodmlError, match=f"{name}' is part of the package"):
        oodml.register_metric(name, share_of_first_class, replace=True)


def test_the_workers_of_a_study_get_it() -> None:
    carried = registrations()
    METRICS._records.pop("mine")
    assert "mine" not in METRICS
    register_all(carried)
    assert "mine" in METRICS
