"""What follows a trained run: scores on other classes and datasets, few-shot adaptation, transfer, a look inside."""

from oodml.adaptation.adapt import few_shot, few_shots
from oodml.adaptation.cross_dataset import transfer
from oodml.adaptation.result import EpisodeScore, FewShot, load_few_shot, save_few_shot
from oodml.adaptation.target import embed_run, evaluate_run

__all__ = [
    "EpisodeScore",
    "FewShot",
    "embed_run",
    "evaluate_run",
    "few_shot",
    "few_shots",
    "load_few_shot",
    "save_few_shot",
    "transfer",
]
