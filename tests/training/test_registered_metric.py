"""A run is scored and selected by a metric of a user."""

import pytest

import oodml
from oodml import OodmlError
from oodml.evaluation.metrics import METRICS
from oodml.training import train


def test_a_registered_metric_in_the_settings_of_a_run(settings):
    with pytest.raises(OodmlError, match="Unknown metric 'classes'"):
        train(settings(metrics=("classes",)))
    oodml.register_metric("classes", lambda embeddings, labels: float(labels.max() + 1))
    try:
        result = train(settings(steps=2, metrics=("classes",), selection="val", selection_metric="classes"))
    finally:
        METRICS._records.pop("classes")
    assert result.scores == {"classes": 8.0}
    assert result.untrained == {"classes": 8.0}
