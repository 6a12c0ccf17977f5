"""A run that was given its weights by a relative path can be used from any working directory."""

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from oodml.config import RunConfig
from oodml.models import make_backbone
from oodml.training import train
from oodml.training.embedder import load_embedder


def test_a_finished_run_finds_its_weights_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for i in range(16):
        file = tmp_path / "images" / f"class{i % 4}" / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(file)
    torch.manual_seed(3)  # other weights than those that `tiny` would begin with
    save_file(make_backbone("tiny", seed=3).body.state_dict(), tmp_path / "mine.safetensors")
    settings = {"backbone": "tiny", "train": "head", "embedding_dim": 8, "steps": 1, "batch_size": 4}
    settings |= {"dataset": {"name": "folder", "root": "images"}, "selection": "last", "quiet": True, "out": "run"}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    relative = RunConfig(**settings, weights="mine.safetensors")
    train(relative)
    assert relative.hash() == RunConfig(**settings, weights=str(tmp_path / "mine.safetensors")).hash()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert RunConfig.of_run(tmp_path / "run").weights == str((tmp_path / "mine.safetensors").resolve())
    load_embedder(tmp_path / "run")
    train(RunConfig.of_run(tmp_path / "run").model_copy(update={"out": str(tmp_path / "run")}))  # the same run: done
