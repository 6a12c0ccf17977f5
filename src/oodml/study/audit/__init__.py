"""The audit: how well would image embeddings generalise on one's own pictures, answered in the minutes given; and the
same question asked of any finished study (`forecast_target`)."""

from oodml.study.audit.answer import Audit, audit
from oodml.study.audit.any_study import forecast_target
from oodml.study.audit.words import target_words

__all__ = ["Audit", "audit", "forecast_target", "target_words"]
