"""What can be known to be wrong with a study before its splits are built and its first run is trained."""

from __future__ import annotations

from oodml.adaptation.adapt import AdaptOptions, check_at_least
from oodml.config import check_metrics
from oodml.encoders.published import encoder_specs
from oodml.shift import Split
from oodml.study.follow import shared_dataset
from oodml.study.plan import StudyConfig, plan

_ANY = Split(["a", "b"], ["c", "d"], name="any split")  # splits may take minutes to build, and settings know none


def check_study(study: StudyConfig) -> None:
    """Raise for settings that no run could use, or that would only fail once the runs are trained."""
    for run in plan(study, [_ANY]):
        check_metrics((*(run.config.metrics or ()), run.config.selection_metric))
    for shots in study.shots or ():
        check_at_least("shots", shots, 1)
    AdaptOptions(study.episodes, **study.few_shot)
    for target in study.transfer or ():
        shared_dataset(target)
    encoder_specs(study.generic or ())
