"""Training: from settings to a finished run. Read run.py, then job.py, then loop.py."""

from oodml.training.embedder import TrainedEmbedder, load_embedder
from oodml.training.result import Result, load_result
from oodml.training.run import train
from oodml.training.stopping import Interrupted

__all__ = ["Interrupted", "Result", "TrainedEmbedder", "load_embedder", "load_result", "train"]
