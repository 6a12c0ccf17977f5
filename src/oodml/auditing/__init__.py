"""The audit: how well would image embeddings generalise on your images? And the same question for a finished study."""

from oodml.auditing.budget import BUDGETS
from oodml.auditing.forecast import forecast_target
from oodml.auditing.run import Audit, audit

__all__ = ["BUDGETS", "Audit", "audit", "forecast_target"]
