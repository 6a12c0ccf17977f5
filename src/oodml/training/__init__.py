"""Training: the loop, checkpoints and resume, several processes, model selection, and what is left afterwards."""

from oodml.training.embedding import TrainedEmbedder, embed_run, evaluate_run, load_embedder
from oodml.training.result import Result, load_result
from oodml.training.run import train
from oodml.training.signals import Interrupted

__all__ = [
    "Interrupted",
    "Result",
    "TrainedEmbedder",
    "embed_run",
    "evaluate_run",
    "load_embedder",
    "load_result",
    "train",
]
