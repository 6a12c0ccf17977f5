"""oodml: train image embeddings, and measure how far they generalise to classes unlike the ones they saw.

The public names are loaded when they are first used, so `import oodml` stays instant and a program that only
measures a distance between two feature arrays never loads a model library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Dataset": "data",
    "Split": "shift",
    "RunConfig": "config",
    "StudyConfig": "study",
    "OodmlError": "_errors",
    "Result": "training",
    "ags": "study",
    "audit": "auditing",
    "build_splits": "shift",
    "evaluate": "evaluation",
    "evaluate_pretrained": "encoders",
    "extract_features": "models",
    "few_shot": "adaptation",
    "fid": "shift",
    "kid": "shift",
    "list_backbones": "models",
    "list_batch_samplers": "data",
    "list_datasets": "data",
    "list_losses": "losses",
    "list_methods": "methods",
    "list_miners": "miners",
    "load_dataset": "data",
    "load_embedder": "training",
    "load_splits": "shift",
    "load_study": "study",
    "make_batch_sampler": "data",
    "make_episodes": "shift",
    "make_loss": "losses",
    "make_method": "methods",
    "make_miner": "miners",
    "register_backbone": "models",
    "register_batch_sampler": "data",
    "register_dataset": "data",
    "register_loss": "losses",
    "register_method": "methods",
    "register_metric": "evaluation",
    "register_miner": "miners",
    "report": "reporting",
    "run_study": "study",
    "structure": "evaluation",
    "threshold_drift": "evaluation",
    "train": "training",
}

_PACKAGES = ("data", "losses", "methods", "miners", "models")  # with public classes: `oodml.losses.Margin`

__all__ = [*_HOME]

if TYPE_CHECKING:
    from oodml import data, losses, methods, miners, models
    from oodml._errors import OodmlError
    from oodml.adaptation import few_shot
    from oodml.auditing import audit
    from oodml.config import RunConfig
    from oodml.data import (
        Dataset,
        list_batch_samplers,
        list_datasets,
        load_dataset,
        make_batch_sampler,
        register_batch_sampler,
        register_dataset,
    )
    from oodml.encoders import evaluate_pretrained
    from oodml.evaluation import evaluate, register_metric, structure, threshold_drift
    from oodml.losses import list_losses, make_loss, register_loss
    from oodml.methods import list_methods, make_method, register_method
    from oodml.miners import list_miners, make_miner, register_miner
    from oodml.models import extract_features, list_backbones, register_backbone
    from oodml.reporting import report
    from oodml.shift import Split, build_splits, fid, kid, load_splits, make_episodes
    from oodml.study import StudyConfig, ags, load_study, run_study
    from oodml.training import Result, load_embedder, train


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"oodml.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'oodml' has no attribute {name!r}; its public names are {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"oodml.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES, "__version__"])
