"""The embedder: pooling, heads, cached features, gradient caching, what is kept at test time."""

import copy

import pytest
import torch

from oodml import OodmlError
from oodml.models import freeze_batchnorm, make_backbone
from oodml.models.embedder import Embedder, Pooled
from oodml.models.heads import Head


@pytest.fixture
def images():
    return torch.rand(12, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def build(heads=None, **options):
    torch.manual_seed(0)
    backbone = freeze_batchnorm(make_backbone("tiny", seed=1, **options))
    return Embedder(backbone, heads or {"embedding": Head(8)}, backbone.feature_dim)


def test_pooling_and_heads_follow_their_definition(images):
    embedder = build({"plain": Head(8), "both": Head(6, layers=2, pooling="avg+max")})
    maps = embedder.backbone(images)
    average, maximum = maps.mean((2, 3)), maps.amax((2, 3))
    outputs = embedder(images)
    torch.testing.assert_close(outputs.features.avg, average)
    torch.testing.assert_close(outputs.features.max, maximum)
    torch.testing.assert_close(outputs.heads["plain"], embedder.heads["plain"](average))
    torch.testing.assert_close(outputs.heads["both"], embedder.heads["both"](average + maximum))
    assert list(embedder.apply_heads(outputs.features, ["both"]).heads) == ["both"]


def test_the_maximum_is_computed_only_for_those_who_ask(images):
    embedder = build()
    assert embedder(images).features.max is None
    with pytest.raises(OodmlError, match="no maximum"):
        embedder(images).features.of("avg+max")


@pytest.mark.parametrize("pooling", ["avg", "avg+max"])
def test_cached_features_give_what_images_give(images, pooling):
    embedder = build({"embedding": Head(8, pooling=pooling)})
    expected = embedder(images)
    parts = [part for part in expected.features if part is not None]
    torch.testing.assert_close(embedder(torch.cat(parts, 1)).heads["embedding"], expected.heads["embedding"])


def test_features_are_divided_by_their_scale(images):
    embedder = build()
    plain = embedder(images).features.avg
    embedder.feature_scale.fill_(4.0)
    torch.testing.assert_close(embedder(images).features.avg, plain / 4)


@pytest.mark.parametrize("chunk", [1, 5, 12, 100])
def test_gradient_caching_gives_loss_and_gradients_of_the_full_batch(images, chunk):
    full = build().double().train()
    cached = copy.deepcopy(full)
    cached.chunk = chunk
    target = torch.randn(12, 12, dtype=torch.float64)
    losses = []
    for embedder in (full, cached):
        rows = embedder(images.double()).heads["embedding"].double()
        loss = ((rows @ rows.T - target) ** 2).mean()  # every pair matters: a sum over chunks would show
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    for one, two in zip(full.parameters(), cached.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


def test_gradient_caching_holds_one_chunk_of_activations(images):
    """What autograd keeps for the backward pass must not grow with the batch beyond the images themselves."""

    def kept(chunk):
        embedder = build().train()
        embedder.chunk = chunk
        total = 0

        def pack(tensor):
            nonlocal total
            total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            embedder(images)
        return total

    assert kept(4) < kept(None) / 4


def test_a_frozen_backbone_gets_no_gradient_and_heads_do(images):
    embedder = build().train()
    embedder.backbone_frozen = True
    embedder(images).heads["embedding"].sum().backward()
    assert all(p.grad is None for p in embedder.backbone.parameters())
    assert all(p.grad is not None for p in embedder.heads.parameters())


def test_only_test_time_heads_are_kept():
    embedder = build({"embedding": Head(8), "auxiliary": Head(32, layers=2, test=False)})
    kept = embedder.test_weights(backbone=True)
    assert {key.split(".")[1] for key in kept if key.startswith("heads.")} == {"embedding"}
    assert any(key.startswith("backbone.") for key in kept)
    small = embedder.test_weights(backbone=False)
    assert set(small) == {"heads.embedding.weight", "heads.embedding.bias", "feature_scale"}


def test_parameter_groups_leave_out_what_is_frozen():
    embedder = build()
    groups = embedder.param_groups(1e-3, weight_decay=0.1)
    assert sum(p.numel() for g in groups for p in g["params"]) == sum(p.numel() for p in embedder.parameters())
    assert all(g["weight_decay"] == 0.1 for g in groups)
    embedder.backbone.requires_grad_(False)
    (heads,) = embedder.param_groups(1e-3, weight_decay=0.1)
    assert heads["params"] == list(embedder.heads.parameters())


def test_pooled_features_map_both_parts():
    doubled = Pooled(torch.ones(2, 3), torch.ones(2, 3)).map(lambda t: 2 * t)
    assert doubled.avg.sum() == doubled.max.sum() == 12
    assert Pooled(torch.ones(2, 3)).map(lambda t: t).max is None
