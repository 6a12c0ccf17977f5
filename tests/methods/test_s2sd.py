"""S2SD: hand-computed values for every distillation and topology, gradients, what is kept, what is refused."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import oodml
from oodml.methods import Batch, Context
from oodml.methods.distillation import DISTILLATIONS, distilled_pairs, relations
from oodml.methods.s2sd import Branches
from oodml.models.embedder import Embedder

FEATURES, CLASSES, BATCH = 12, 4, 8


def softmax(row):
    total = sum(math.exp(x) for x in row)
    return [math.exp(x) / total for x in row]


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def by_hand(name, source, target, t):
    """The distillation written out with Python numbers."""
    s, g = source.tolist(), target.tolist()
    b = len(s)
    scaled = lambda rows: [[x / t for x in row] for row in rows]  # noqa: E731
    if name == "r-kl":
        return t * t / b * sum(kl(softmax(y), softmax(x)) for x, y in zip(scaled(s), scaled(g), strict=True))
    if name == "kl-full":
        flat = lambda rows: [x for row in rows for x in row]  # noqa: E731
        return t * t * kl(softmax(flat(scaled(g))), softmax(flat(scaled(s))))
    if name == "kl-mean":
        return t * t * kl(softmax([sum(r) / b for r in scaled(g)]), softmax([sum(r) / b for r in scaled(s)]))
    if name == "euclidean":
        return sum(math.dist(x, y) for x, y in zip(s, g, strict=True)) / b
    dot = lambda x, y: sum(a * c for a, c in zip(x, y, strict=True))  # noqa: E731
    return sum(1 - dot(x, y) / math.sqrt(dot(x, x) * dot(y, y)) for x, y in zip(s, g, strict=True)) / b


@pytest.mark.parametrize("temperature", [0.2, 1.0, 2.0])
@pytest.mark.parametrize("name", DISTILLATIONS)
def test_each_distillation_equals_its_formula(name, temperature):
    torch.manual_seed(0)
    source, target = (relations(torch.randn(5, 7, dtype=torch.float64)) for _ in range(2))
    value = DISTILLATIONS[name](source, target, temperature)
    assert value.item() == pytest.approx(by_hand(name, source, target, temperature), rel=1e-9)
    assert DISTILLATIONS[name](source, source, temperature).item() == pytest.approx(0, abs=1e-5)


def test_the_topologies_distil_the_pairs_they_name():
    assert distilled_pairs("multi", [4, 5, 6]) == [(0, 1), (0, 2), (0, 3)]
    assert set(distilled_pairs("nested", [4, 5, 6])) == {(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)}
    assert distilled_pairs("chained", [4, 5, 6]) == [(0, 1), (1, 2), (2, 3)]
    assert distilled_pairs("chained", [6, 4, 5]) == [(0, 2), (2, 3), (3, 1)]
    assert distilled_pairs("chained-printed", [4, 5, 6]) == [(1, 0), (2, 1)]


def printed_pairs(topology, dims):
    """The sums of equations 5, 7 and 8 with the paper's indices, dims[0] the base; "chained" as the text has it."""
    m = len(dims) - 1
    if topology == "multi":
        return [(0, i) for i in range(1, m + 1)]
    if topology == "nested":
        indices = [(i, j) for i in range(m + 1) for j in range(1, m + 1)]
        return [(i, j) for i, j in indices if j != i and dims[j] >= dims[i]]
    if topology == "chained":
        return [(i - 1, i) for i in range(1, m + 1)]
    return [(i, i - 1) for i in range(1, m)]


def slow_distillation(topology, spaces, gamma, t):
    """The distillation terms of equations 5, 7 and 8, numbers and loops alone; eq. 7 divides by binom(m, m - 1)."""
    m, b = len(spaces) - 1, len(spaces[0])
    unit = [space / np.linalg.norm(space, axis=1, keepdims=True) for space in spaces]
    total = 0.0
    for i, j in printed_pairs(topology, [space.shape[1] for space in spaces]):
        for row in range(b):
            s = [sum(unit[i][row] * unit[i][k]) / t for k in range(b)]
            g = [sum(unit[j][row] * unit[j][k]) / t for k in range(b)]
            total += t**2 / b * kl(softmax(g), softmax(s))
    return gamma / math.comb(m, m - 1) * total


@pytest.mark.parametrize("widths", [(8,), (7, 8, 9, 10), (7, 8, 8, 10), (8, 8, 8, 8)])
@pytest.mark.parametrize("topology", ["multi", "nested", "chained", "chained-printed"])
def test_the_distillation_equals_the_equations_written_out_in_loops(topology, widths):
    options = {"targets": widths, "feature_distill": False, "temperature": 0.6}
    if topology == "chained-printed" and len(widths) == 1:
        with pytest.raises(oodml.OodmlError, match="two widths or more, or use topology='chained'"):
            run(topology=topology, **options)
        return
    method, embedder, batch, loss = run(topology=topology, gamma=20.0, **options)
    without = run(topology=topology, gamma=0.0, **options)[3]
    features = batch.inputs.detach()
    spaces = [embedder.heads["embedding"](features), *method.branches(features)]
    slow = slow_distillation(topology, [space.detach().double().numpy() for space in spaces], 20.0, 0.6)
    assert (loss - without).item() == pytest.approx(slow, rel=1e-3)


@pytest.mark.parametrize("topology", ["chained", "chained-printed"])
def test_a_chain_ends_in_the_embedding_and_as_printed_begins_there(topology):
    gradients = []
    for gamma in (0.0, 20.0):
        _, embedder, _, loss = run(topology=topology, gamma=gamma, targets=[7, 8, 9], feature_distill=False)
        loss.backward()
        gradients.append(embedder.heads["embedding"].weight.grad)
    assert torch.allclose(*gradients) == (topology == "chained-printed")


def run(step=10_000, seed=0, embedding_dim=6, **options):
    """An S2SD method on cached features: (method, embedder, batch, loss)."""
    torch.manual_seed(seed)
    method = oodml.make_method("s2sd", **{"targets": [8, 10], "base": "multisimilarity", **options})
    generator = torch.Generator().manual_seed(seed)
    method.setup(Context(CLASSES, embedding_dim, FEATURES, 100, generator=generator))
    embedder = Embedder(None, method.heads(FEATURES), FEATURES)
    width = 2 * FEATURES if embedder.needs_max else FEATURES
    inputs = torch.randn(BATCH, width, requires_grad=True)
    labels = torch.arange(BATCH) % CLASSES
    batch = Batch(inputs, labels, labels.numpy(), 0, lambda: inputs)
    return method, embedder, batch, method.loss(batch, embedder, step)


@pytest.mark.parametrize("topology", ["multi", "nested", "chained", "chained-printed"])
@pytest.mark.parametrize("name", DISTILLATIONS)
def test_the_loss_equals_the_equations(name, topology):
    method, embedder, batch, loss = run(distillation=name, topology=topology, gamma=3.0, temperature=0.7)
    features = batch.inputs.detach()
    spaces = [embedder.heads["embedding"](features), *method.branches(features)]
    objective = oodml.make_loss("multisimilarity")
    base, *auxiliary = [objective(space, batch.labels) for space in spaces]
    similar = [relations(space) for space in spaces]
    pairs = printed_pairs(topology, [6, 8, 10])
    kd = sum(by_hand(name, similar[i], similar[j], 0.7) for i, j in pairs) / 2
    kd += by_hand(name, similar[0], relations(features), 0.7)
    expected = (base + sum(auxiliary) / 2) / 2 + 3.0 * kd
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


def test_features_are_distilled_only_once_they_are_worth_it():
    early, late = (run(step=step, feature_start=50)[3].item() for step in (49, 50))
    assert late > early
    assert run(step=49, feature_start=50, feature_distill=False)[3].item() == pytest.approx(early)


@pytest.mark.parametrize("detach", [True, False])
def test_detach_really_blocks_the_gradient_into_the_branches(detach):
    quiet, _, _, silent_loss = run(gamma=0.0, detach=detach)
    loud, _, _, loud_loss = run(gamma=50.0, detach=detach)
    silent_loss.backward()
    loud_loss.backward()
    same = torch.allclose(quiet.branches.first.weight.grad, loud.branches.first.weight.grad, rtol=1e-4, atol=1e-7)
    assert same == detach


@pytest.mark.parametrize(("widths", "layers"), [((8, 8, 8), 3), ((8, 12, 6), 2), ((9,), 2), ((5, 7), 1)])
def test_branches_in_one_pass_equal_a_loop_over_separate_mlps(widths, layers):
    torch.manual_seed(0)
    branches = Branches(FEATURES, widths, layers).double()
    features = torch.randn(BATCH, FEATURES, dtype=torch.float64, requires_grad=True)
    outputs = branches(features)
    weights = [torch.randn_like(x) for x in outputs]
    sum((x * w).sum() for x, w in zip(outputs, weights, strict=True)).backward()
    fast = features.grad.clone()

    features.grad = None
    starts = [0, *torch.tensor(widths).cumsum(0).tolist()]
    for k, width in enumerate(widths):
        mlp = nn.Linear(FEATURES, width).double()
        mlp.weight.data = branches.first.weight.data[starts[k] : starts[k + 1]]
        mlp.bias.data = branches.first.bias.data[starts[k] : starts[k + 1]]
        slow = mlp(features)
        for layer in branches.further:
            slow = layer[k](slow.relu())
        torch.testing.assert_close(slow, outputs[k])
        (slow * weights[k]).sum().backward(retain_graph=True)
    torch.testing.assert_close(features.grad, fast)


def test_max_pooling_reaches_the_branches_but_not_the_embedding():
    method, embedder, batch, loss = run(variant="msdfa", targets=None)
    assert embedder.needs_max
    assert embedder.specs["embedding"].pooling == "avg"
    assert method.branches.widths == [512, 1024, 1536, 2048]
    loss.backward()
    assert batch.inputs.grad[:, FEATURES:].abs().sum() > 0


class Maps(nn.Module):
    """A backbone whose feature maps are its images."""

    def forward(self, images):
        return images


def test_finer_feature_windows_are_distilled_instead_of_the_average():
    torch.manual_seed(0)
    method = oodml.make_method("s2sd", targets=[8], variant="msdfa", feature_windows=(2, 3), gamma=2.0)
    method.setup(Context(CLASSES, 6, 5, 100))
    embedder = Embedder(Maps(), method.heads(5), 5)
    images, labels = torch.rand(BATCH, 5, 4, 7), torch.arange(BATCH) % CLASSES
    batch = Batch(images, labels, labels.numpy(), 0, lambda: images)
    late, early = method.loss(batch, embedder, 10_000), method.loss(batch, embedder, 0)
    windows = torch.stack(
        [images[:, :, y : y + 2, x : x + 3].mean((2, 3)) for y in (0, 2) for x in (0, 3)], dim=-1
    ).flatten(1)
    base = relations(embedder.heads["embedding"](images.mean((2, 3))))
    expected = 2.0 * by_hand("r-kl", base, relations(windows), 1.0)
    assert (late - early).item() == pytest.approx(expected, rel=1e-4)
    assert set(embedder.test_weights(backbone=False)) == {
        "feature_scale", "heads.embedding.weight", "heads.embedding.bias"
    }  # fmt: skip


@pytest.mark.parametrize(("window", "windows"), [((3, 3), 4), ((1, 1), 49), ((2, 2), 9), ((4, 1), 7)])
def test_the_windows_of_table_14_move_by_their_own_size(window, windows):
    """Appendix E.d lists sizes of windows; the feature maps of ResNet50 at 224 pixels are 7 x 7."""
    method = oodml.make_method("s2sd", targets=[8], feature_windows=window)
    method.setup(Context(CLASSES, 6, 5, 100))
    maps = torch.rand(2, 5, 7, 7)
    pooled = Embedder(Maps(), method.heads(5), 5).pool(maps).windows.reshape(2, 5, windows)
    height, width = window
    corners = [(y, x) for y in range(0, 7 - height + 1, height) for x in range(0, 7 - width + 1, width)]
    means = [maps[:, :, y : y + height, x : x + width].mean((2, 3)) for y, x in corners]
    torch.testing.assert_close(pooled, torch.stack(means, -1))


def test_windows_larger_than_the_feature_maps_are_refused():
    method = oodml.make_method("s2sd", targets=[8], feature_windows=(5, 3))
    method.setup(Context(CLASSES, 6, 5, 100))
    with pytest.raises(oodml.OodmlError, match="5 x 3 do not fit into feature maps of 4 x 7"):
        Embedder(Maps(), method.heads(5), 5)(torch.rand(BATCH, 5, 4, 7))


def test_windows_are_refused_where_there_are_no_feature_maps():
    with pytest.raises(oodml.OodmlError, match="feature maps"):
        oodml.make_method("s2sd", feature_windows=(3, 3)).check(128, "head")


def test_concurrent_trains_the_features_through_the_wide_spaces_only():
    method, _, batch, _ = run()
    _, same_embedder, same_batch, loss = run(setup="concurrent")
    loss.backward()
    with_base = same_batch.inputs.grad.clone()
    auxiliary = [
        f(x, batch.labels) for f, x in zip(method.target_objectives, method.branches(batch.inputs), strict=True)
    ]
    (torch.stack(auxiliary).mean() / 2).backward()
    torch.testing.assert_close(with_base, batch.inputs.grad)
    assert same_embedder.heads["embedding"].weight.grad.abs().sum() > 0


def test_joint_is_the_losses_without_distillation():
    assert run(setup="joint")[3].item() == pytest.approx(run(gamma=0.0)[3].item())


def test_defaults_depend_on_the_size():
    assert run()[0].gamma == 50
    assert run(targets=None, embedding_dim=512)[0].branches.widths == [1024, 1536, 2048]
    assert run()[0].feature_start == 10  # a tenth of a run of 100 steps


@pytest.mark.parametrize("nested_lr", ["own", "base"])
def test_nested_losses_keep_their_own_learning_rates(nested_lr):
    method = run(base="margin", nested_lr=nested_lr)[0]
    rates = sorted({group["lr"] for group in method.param_groups(1e-5)})
    assert rates == ([1e-5, 5e-4] if nested_lr == "own" else [1e-5])
    ids = [id(p) for group in method.param_groups(1e-5) for p in group["params"]]
    assert len(ids) == len(set(ids)) == len(list(method.parameters()))


def test_four_branches_of_one_width_are_four_teachers():
    """Multi-B of figure 4A: four targets of 2,048 in place of four widths."""
    method = run(variant="msda", targets=[16] * 4)[0]
    assert method.branches.widths == [16] * 4
    assert len({tuple(rows.flatten().tolist()) for rows in method.branches.first.weight.split(16)}) == 4
    assert method.pairs == [(0, 1), (0, 2), (0, 3), (0, 4)]


def test_every_head_has_its_own_copy_of_the_loss():
    method = run(base="margin")[0]
    betas = {id(p) for loss in (method.objective, *method.target_objectives) for p in loss.parameters()}
    assert len(betas) == 3


@pytest.mark.parametrize("base", [*oodml.list_losses(), {"name": "rho", "base": "margin"}])
def test_it_works_with_every_loss(base):
    if base == "crossbatch":
        base = {"name": "crossbatch", "base": "contrastive"}
    loss = run(base=base)[3]
    assert torch.isfinite(loss)
    loss.backward()


def test_the_kept_weights_hold_no_auxiliary_tensor():
    _, embedder, _, _ = run(variant="msdfa")
    assert {key for key in embedder.test_weights(backbone=True) if key != "feature_scale"} == {
        "heads.embedding.weight",
        "heads.embedding.bias",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "msdfaa"}, "Did you mean 'msdfa'"),
        ({"distillation": "kl"}, "r-kl"),
        ({"topology": "nest"}, "nested"),
        ({"targets": [16] * 17}, "1 to 16"),
        ({"layers": 7}, "0 to 4"),
        ({"gamma": -1.0}, "gamma >= 0"),
        ({"base": "no-such-loss"}, "Unknown loss"),
        ({"tempratur": 1.0}, "Did you mean 'temperature'"),
    ],
)
def test_bad_options_are_found_at_once(options, message):
    with pytest.raises(oodml.OodmlError, match=message):
        oodml.make_method("s2sd", **options)


def test_no_wider_target_is_refused_before_any_data_is_read():
    with pytest.raises(oodml.OodmlError, match="give targets="):
        oodml.make_method("s2sd").check(2048, "all")
