"""Run by torchrun from test_distributed: one of several processes."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import test_distributed

import conftest  # noqa: F401 - registers the data set
import oodml
from oodml.training.distributed import join


def main(folder: Path) -> None:
    processes = join("cpu")
    assert processes.count == 2
    for name, method in test_distributed.METHODS.items():
        chosen = oodml.RunConfig.load(folder / "config.yaml", method=method).resolved()
        loss, gradients = test_distributed.gradients(chosen, processes, folder)
        torch.save({"loss": loss, "gradients": gradients}, folder / f"{name}-{processes.rank}.pt")
    oodml.train(oodml.RunConfig.load(folder / "config.yaml"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
