"""A new method, batch sampler, dataset or backbone is one file: it is found, listed, and used by a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FILES = {
    "oodml.methods": '''
from oodml.methods import register_method
from oodml.methods.plain import Plain

@register_method("mine", revision=3)
class Mine(Plain):
    """A triplet loss on one head."""

    def __init__(self):
        super().__init__("triplet")
''',
    "oodml.data.samplers": '''
from oodml.data.samplers import register_batch_sampler
from oodml.data.samplers.spc import SPC

@register_batch_sampler("mine")
class MySampler(SPC):
    """As spc."""
''',
    "oodml.data.sets": '''
import numpy as np
from oodml.data import ArraySource, Transforms, build_dataset, register_dataset

@register_dataset("mine")
def load_mine():
    """Noise, ten images of each of eight classes."""
    pixels = np.random.default_rng(0).integers(0, 256, (80, 16, 16), dtype=np.uint8)
    source = ArraySource(pixels, [str(i) for i in range(80)])
    return build_dataset("mine", source, [f"c{i // 10}" for i in range(80)], transforms=Transforms(16, 16))
''',
    "oodml.models.backbones": '''
import torch
from oodml.models import Backbone, register_backbone

@register_backbone("mine")
def mine(pretrained, weights, seed):
    """One convolution."""
    return Backbone(torch.nn.Conv2d(3, 8, 3), name="mine", feature_dim=8, input_size=16)
''',
}
PROGRAM = """
import importlib, sys, oodml
for package in sys.argv[2:]:
    importlib.import_module(package).__path__.append(sys.argv[1] + "/" + package)
names = oodml.list_methods(), oodml.list_batch_samplers(), oodml.list_datasets(), oodml.list_backbones()
print(["mine" in each for each in names], oodml.methods.Mine.__name__, oodml.data.samplers.MySampler.__name__)
config = oodml.RunConfig(dataset="mine", backbone="mine", method="mine", sampler="mine", embedding_dim=4, steps=2,
                         batch_size=4, out=sys.argv[1] + "/run", device="cpu", quiet=True, selection="last")
print(0 <= oodml.train(config).scores["recall@1"] <= 1)
"""


def test_one_file_is_enough(tmp_path: Path) -> None:
    for package, text in FILES.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "mine.py").write_text(text, encoding="utf-8")
    environment = {**os.environ, "OODML_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), *FILES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "[True, True, True, True] Mine MySampler\nTrue\n", done.stdout + done.stderr
