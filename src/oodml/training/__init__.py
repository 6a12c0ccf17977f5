"""Training: the loop, checkpoints and resume, several processes, model selection, and what is left afterwards."""

from oodml.training.embedding import TrainedEmbedder, embed_run, evaluate_run, load_embedder
from oodml.training.few_shot_result import EpisodeScore, FewShot, load_few_shot, save_few_shot
from oodml.training.fewshot import few_shot
from oodml.training.pretrained import PretrainedScore, evaluate_pretrained
from oodml.training.result import Result, load_result
from oodml.training.run import train
from oodml.training.signals import Interrupted
from oodml.training.transfer import transfer

__all__ = [
    "EpisodeScore",
    "FewShot",
    "Interrupted",
    "PretrainedScore",
    "Result",
    "TrainedEmbedder",
    "embed_run",
    "evaluate_pretrained",
    "evaluate_run",
    "few_shot",
    "load_embedder",
    "load_few_shot",
    "load_result",
    "save_few_shot",
    "train",
    "transfer",
]
