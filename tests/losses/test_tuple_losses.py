"""The ten tuple and pair objectives against references written from their formulas with plain loops in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, product

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import oodml
from oodml import OodmlError
from oodml.miners import Pairs, Triplets

LABELS = {
    "pairs": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
    "threes": [2, 0, 1, 0, 2, 1, 1, 0, 2],
    "uneven": [0, 1, 1, 1, 2, 2, 3, 1, 0, 2, 4],  # classes 3 and 4 have one sample
}
Triple = tuple[int, int, int]


def batch(kind: str, dim: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    labels = torch.tensor(LABELS[kind])
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(labels), dim, generator=generator, dtype=torch.float64), labels


def unit(x: Tensor) -> np.ndarray:
    rows = x.detach().numpy()
    return rows / np.sqrt((rows**2).sum(1, keepdims=True))


def dist(u: np.ndarray, v: np.ndarray) -> float:
    return math.sqrt(max(((u - v) ** 2).sum(), 1e-8))


def positives(y: list[int], a: int) -> list[int]:
    return [p for p in range(len(y)) if p != a and y[p] == y[a]]


def negatives(y: list[int], a: int) -> list[int]:
    return [n for n in range(len(y)) if y[n] != y[a]]


def positive_pairs(y: list[int]) -> list[tuple[int, int]]:
    return [(a, p) for a in range(len(y)) for p in positives(y, a)]


def every_triplet(y: list[int]) -> list[Triple]:
    return [(a, p, n) for a, p in positive_pairs(y) for n in negatives(y, a)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def some_triplets(y: list[int]) -> list[Triple]:
    """A fixed third of the valid triplets, one of them twice."""
    kept = every_triplet(y)[::3]
    return [*kept, kept[0]]


def tensors(triplets: list[Triple]) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(column) for column in zip(*triplets, strict=True))


# ---- references


def contrastive(x: Tensor, triplets: list[Triple], margin: float = 1.0) -> float:
    u = unit(x)
    pull = mean([dist(u[a], u[p]) for a, p, _ in triplets])
    return pull + mean([max(margin - dist(u[a], u[n]), 0) for a, _, n in triplets])


def triplet(x: Tensor, triplets: list[Triple], power: int = 1) -> float:
    u = unit(x)
    return mean([max(dist(u[a], u[p]) ** power - dist(u[a], u[n]) ** power + 0.2, 0) for a, p, n in triplets])


def margin(x: Tensor, y: list[int], triplets: list[Triple], beta: list[float], per_triplet: bool = False) -> float:
    u = unit(x)
    pull = [max(dist(u[a], u[p]) - beta[y[a]] + 0.2, 0) for a, p, _ in triplets]
    push = [max(beta[y[a]] - dist(u[a], u[n]) + 0.2, 0) for a, _, n in triplets]
    active = sum(t > 0 for t in pull + push)
    if per_triplet:
        active = sum(t + s > 0 for t, s in zip(pull, push, strict=True))
    return (sum(pull) + sum(push)) / max(active, 1)


def quadruplet(x: Tensor, quadruplets: list[tuple[int, int, int, int]], m1: float = 1.0, m2: float = 0.5) -> float:
    u = unit(x)
    first = mean([max(dist(u[a], u[p]) - dist(u[a], u[n]) + m1, 0) for a, p, n, _ in quadruplets])
    return first + mean([max(dist(u[a], u[p]) - dist(u[n], u[k]) + m2, 0) for a, p, n, k in quadruplets])


def snr(x: Tensor, triplets: list[Triple], lam: float = 0.005) -> float:
    u = unit(x)
    terms = [
        max((np.var(u[a] - u[p], ddof=1) - np.var(u[a] - u[n], ddof=1)) / np.var(u[a], ddof=1) + 0.2, 0)
        for a, p, n in triplets
    ]
    active = sum(t > 0 for t in terms)
    return sum(terms) / max(active, 1) + lam * mean([abs(row.sum()) for row in u])


def genlifted(x: Tensor, y: list[int], squared: bool = True) -> float:
    r = x.detach().numpy()
    terms = []
    for a in range(len(y)):
        pull = sum(math.exp(dist(r[a], r[p])) for p in positives(y, a))
        push = sum(math.exp(1 - dist(r[a], r[n])) for n in negatives(y, a))
        terms.append(max(math.log(pull) + math.log(push), 0) if pull and push else 0.0)
    return mean(terms) + 0.005 * mean([(row @ row) ** (1 if squared else 0.5) for row in r])


def npair(x: Tensor, y: list[int], squared: bool = True) -> float:
    r = x.detach().numpy()
    terms = [
        math.log(1 + sum(math.exp(r[a] @ r[n] - r[a] @ r[p]) for n in negatives(y, a))) for a, p in positive_pairs(y)
    ]
    return mean(terms) + 0.005 * mean([(row @ row) ** (1 if squared else 0.5) for row in r])


def angular_part(x: Tensor, y: list[int], alpha: float = 45.0) -> float:
    u, t = unit(x), math.tan(math.radians(alpha)) ** 2
    terms = []
    for a, p in positive_pairs(y):
        push = sum(math.exp(4 * t * (u[a] + u[p]) @ u[n] - 2 * (1 + t) * u[a] @ u[p]) for n in negatives(y, a))
        terms.append(math.log(1 + push))
    return mean(terms)


def histogram(x: Tensor, y: list[int], bins: int = 65) -> float:
    u, step = unit(x), 2 / (bins - 1)
    nodes = [-1 + r * step for r in range(bins)]
    pairs = list(combinations(range(len(y)), 2))
    histograms = []
    for same in (True, False):
        values = [u[i] @ u[j] for i, j in pairs if (y[i] == y[j]) == same]
        histograms.append([mean([max(1 - abs(s - t) / step, 0) for s in values]) for t in nodes])
    return sum(histograms[1][r] * sum(histograms[0][: r + 1]) for r in range(bins))


def multisimilarity(x: Tensor, y: list[int], qualifying_only: bool = False) -> float:
    s = unit(x) @ unit(x).T
    terms = []
    for a in range(len(y)):
        pos, neg = positives(y, a), negatives(y, a)
        kept_n = [n for n in neg if pos and s[a, n] + 0.1 > min(s[a, p] for p in pos)]
        kept_p = [p for p in pos if neg and s[a, p] - 0.1 < max(s[a, n] for n in neg)]
        pull = math.log(1 + sum(math.exp(-2 * (s[a, p] - 0.5)) for p in kept_p)) / 2
        push = math.log(1 + sum(math.exp(40 * (s[a, n] - 0.5)) for n in kept_n)) / 40
        if not qualifying_only or (kept_p and kept_n):
            terms.append(pull + push)
    return mean(terms)


# ---- the formulas


def check(loss: torch.nn.Module, x: Tensor, y: Tensor, expected: float, tuples: object = None) -> None:
    assert loss(x, y, tuples).item() == pytest.approx(expected, rel=1e-7)  # β is stored in float32
    assert loss(x.float(), y, tuples).item() == pytest.approx(expected, rel=2e-5, abs=1e-6)


TRIPLET_LOSSES: dict[str, tuple[dict, Callable[[Tensor, list[int], list[Triple]], float]]] = {
    "contrastive": ({}, lambda x, y, t: contrastive(x, t)),
    "contrastive margin": ({"margin": 1.3}, lambda x, y, t: contrastive(x, t, 1.3)),
    "triplet": ({}, lambda x, y, t: triplet(x, t)),
    "triplet squared": ({"squared": True}, lambda x, y, t: triplet(x, t, power=2)),
    "margin": ({}, lambda x, y, t: margin(x, y, t, [1.2] * 5)),
    "margin triplets": ({"normaliser": "triplets"}, lambda x, y, t: margin(x, y, t, [1.2] * 5, per_triplet=True)),
    "margin beta": ({"beta": 0.6, "learn_beta": False}, lambda x, y, t: margin(x, y, t, [0.6] * 5)),
    "snr": ({}, lambda x, y, t: snr(x, t)),
    "snr lam": ({"lam": 0.0}, lambda x, y, t: snr(x, t, 0.0)),
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("case", TRIPLET_LOSSES)
def test_a_triplet_loss_is_its_formula_on_given_tuples_and_on_all_triplets(case: str, kind: str) -> None:
    x, y = batch(kind)
    options, reference = TRIPLET_LOSSES[case]
    loss = oodml.make_loss(case.split()[0], num_classes=5, miner="all", **options).double()
    few, every = some_triplets(y.tolist()), every_triplet(y.tolist())
    check(loss, x, y, reference(x, y.tolist(), few), tensors(few))
    check(loss, x, y, reference(x, y.tolist(), few[:4]), tensors(few[:4]))
    check(loss, x, y, reference(x, y.tolist(), every))  # for triplet and snr: the sum that lists no triplet


@pytest.mark.parametrize("kind", LABELS)
def test_masked_rows_of_triplets_do_not_count(kind: str) -> None:
    x, y = batch(kind)
    kept = some_triplets(y.tolist())[:5]
    a, p, n = tensors([*kept, (0, 0, 0)])
    mined = Triplets(a, p, n, torch.tensor([True] * 5 + [False]))
    for name, (options, reference) in TRIPLET_LOSSES.items():
        loss = oodml.make_loss(name.split()[0], num_classes=5, **options).double()
        check(loss, x, y, reference(x, y.tolist(), kept), mined)


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize(
    ("name", "options", "reference"),
    [
        ("genlifted", {}, genlifted),
        ("genlifted", {"squared_norm": False}, lambda x, y: genlifted(x, y, squared=False)),
        ("npair", {}, npair),
        ("npair", {"squared_norm": False}, lambda x, y: npair(x, y, squared=False)),
        ("angular", {}, lambda x, y: npair(x, y) + 2 * angular_part(x, y)),
        ("angular", {"alpha": 60.0, "weight": 1.0}, lambda x, y: npair(x, y) + angular_part(x, y, 60.0)),
        ("histogram", {}, histogram),
        ("histogram", {"bins": 11}, lambda x, y: histogram(x, y, 11)),
        ("multisimilarity", {}, multisimilarity),
        ("multisimilarity", {"qualifying_only": True}, lambda x, y: multisimilarity(x, y, True)),
    ],
)
def test_a_pair_loss_is_its_formula(name: str, options: dict, reference: Callable, kind: str) -> None:
    x, y = batch(kind)
    check(oodml.make_loss(name, **options), x, y, reference(x, y.tolist()))


def test_quadruplets_given_by_the_caller() -> None:
    x, y = batch("pairs")
    labels = y.tolist()
    quadruplets = [
        (a, p, n, k)
        for (a, p, n), k in product(every_triplet(labels), range(len(labels)))
        if labels[k] not in (labels[a], labels[n])
    ][::7]
    given = tuple(torch.tensor(column) for column in zip(*quadruplets, strict=True))
    check(oodml.make_loss("quadruplet"), x, y, quadruplet(x, quadruplets), given)
    loss = oodml.make_loss("quadruplet", margin=0.2, margin2=0.2)
    check(loss, x, y, quadruplet(x, quadruplets, 0.2, 0.2), given)


def test_the_fourth_sample_of_a_quadruplet_is_uniform_over_the_third_classes() -> None:
    from scipy.stats import chisquare

    from oodml.losses.quadruplet import choose_third_class

    y = torch.tensor([3, 0, 1, 0, 2, 1, 7, 3, 7])
    generator = torch.Generator().manual_seed(0)
    for (a, n), length in product([(0, 1), (8, 2), (4, 6), (3, 3)], [4000, 20]):  # a long list and short ones
        lists = [torch.full((length,), index) for index in (a, n)]
        many = [choose_third_class(y, *lists, generator) for _ in range(4000 // length)]
        drawn, found = (torch.cat(parts) for parts in zip(*many, strict=True))
        allowed = [i for i in range(len(y)) if y[i] not in (y[a], y[n])]
        counts = torch.bincount(drawn, minlength=len(y))
        assert found.all()
        assert counts.sum() == counts[allowed].sum()
        assert chisquare(counts[allowed].numpy()).pvalue > 1e-3
    _, found = choose_third_class(torch.tensor([0, 0, 1]), torch.tensor([0]), torch.tensor([2]), None)
    assert not found


def test_quadruplets_without_a_third_class_keep_the_triplet_term() -> None:
    x, _ = batch("pairs")
    y = torch.tensor([0] * 5 + [1] * 5)
    both = oodml.make_loss("quadruplet", miner="hard")(x, y)
    assert both.item() == pytest.approx(oodml.make_loss("triplet", margin=1.0, miner="hard")(x, y).item())


def test_one_positive_per_anchor_averages_to_all_pairs() -> None:
    x, y = batch("threes")
    generator = torch.Generator().manual_seed(0)
    one = oodml.make_loss("npair", one_positive=True, generator=generator)
    values = torch.stack([one(x, y) for _ in range(400)])
    assert values.std() > 0
    assert values.mean().item() == pytest.approx(npair(x, y.tolist()), abs=4 * (values.std() / 20).item())


def test_pair_losses_read_triplets_as_pairs() -> None:
    x, y = batch("threes")
    every = tensors(every_triplet(y.tolist()))
    for name in ("genlifted", "npair", "angular", "histogram"):
        loss = oodml.make_loss(name)
        assert loss(x, y, every).item() == pytest.approx(loss(x, y).item(), rel=1e-12)
        few = tensors(some_triplets(y.tolist())[:4])
        assert loss(x, y, few).item() != pytest.approx(loss(x, y).item(), rel=1e-3)


def test_contrastive_and_margin_take_pairs() -> None:
    x, y = batch("threes")
    pos, neg = positive_pairs(y.tolist()), [(a, n) for a in range(9) for n in negatives(y.tolist(), a)]
    u = unit(x)
    expected = mean([dist(u[a], u[p]) for a, p in pos]) + mean([max(1 - dist(u[a], u[n]), 0) for a, n in neg])
    check(oodml.make_loss("contrastive", miner="lifted"), x, y, expected)
    ones = torch.ones(len(pos), dtype=torch.bool), torch.ones(len(neg), dtype=torch.bool)
    pairs = Pairs(*(torch.tensor(c) for c in (*zip(*pos, strict=True), *zip(*neg, strict=True))), *ones)
    check(oodml.make_loss("contrastive"), x, y, expected, pairs)
    with pytest.raises(OodmlError, match="pairs"):
        oodml.make_loss("margin", num_classes=3, normaliser="triplets")(x, y, pairs)
    with pytest.raises(OodmlError, match="needs triplets"):
        oodml.make_loss("triplet", miner="lifted")(x, y)


def test_beta_is_learned_per_class_at_the_papers_rate_without_decay() -> None:
    x, y = batch("pairs")
    loss = oodml.make_loss("margin", num_classes=5, beta=0.9)
    loss(x, y).backward()
    (group,) = loss.param_groups(1e-5)
    assert group["params"] == [loss.beta]
    assert (group["lr"], group["weight_decay"]) == (5e-4, 0.0)
    assert loss.beta.shape == (5,)
    assert loss.beta.grad.abs().sum() > 0
    assert oodml.make_loss("margin", per_class=False).beta.shape == (1,)
    fixed = oodml.make_loss("margin", learn_beta=False)
    assert fixed.param_groups(1e-5) == []
    assert "beta" in fixed.state_dict()
    with pytest.raises(OodmlError, match="num_classes"):
        oodml.make_loss("margin")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("angular", {"alpha": 80.0}),
        ("histogram", {"bins": 1}),
        ("margin", {"normaliser": "pairs", "num_classes": 3}),
        ("multisimilarity", {"epsilon": 0.2, "miner": "lifted"}),
    ],
)
def test_an_impossible_option_is_named(name: str, options: dict) -> None:
    option = next(iter(options))
    with pytest.raises(OodmlError, match=option):
        oodml.make_loss(name, **options)


def test_epsilon_reaches_the_miner() -> None:
    assert oodml.make_loss("multisimilarity", epsilon=0.3).miner.epsilon == 0.3
    assert oodml.make_loss("multisimilarity").miner.epsilon == 0.1


class Largest(TorchDispatchMode):
    """Remembers the number of entries of the largest tensor that any operation made."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = function(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, Tensor):
                self.entries = max(self.entries, each.numel())
        return made


@pytest.mark.parametrize(
    ("name", "miner"),
    [
        *((name, None) for name in ("angular", "npair", "histogram", "genlifted", "margin", "quadruplet")),
        *((name, "all") for name in ("triplet", "snr", "genlifted", "npair", "histogram", "multisimilarity")),
    ],
)
def test_a_large_batch_needs_no_cubic_tensor(name: str, miner: str | None) -> None:
    """1,024 samples, 32 a class: 31 million triplets, and a cube of a thousand million entries."""
    x, y = torch.randn(1024, 16, requires_grad=True), torch.arange(1024) // 32
    loss = oodml.make_loss(name, num_classes=32, miner=miner)
    with Largest() as largest:
        loss(x, y).backward()
    assert 1024**2 <= largest.entries <= 4 * 1024**2


def test_weights_of_all_triplets_are_those_that_listing_them_gives() -> None:
    """On distances with many ties, of all anchors and of the first four."""
    from oodml.losses.tuples import weights_in_triplets

    generator = torch.Generator().manual_seed(0)
    for kind, labels in LABELS.items():
        for anchors in (len(labels), 4):
            matrix = torch.randint(0, 20, (anchors, len(labels)), generator=generator) / 10
            weights, active, every = weights_in_triplets(matrix, torch.tensor(labels), 0.2)
            expected, count, listed = torch.zeros_like(matrix), 0, [t for t in every_triplet(labels) if t[0] < anchors]
            for a, p, n in listed:
                if matrix[a, n] < matrix[a, p] + 0.2:
                    expected[a, p] += 1
                    expected[a, n] -= 1
                    count += 1
            torch.testing.assert_close(weights, expected, rtol=0, atol=0)
            assert (active, every) == (count, len(listed)), kind


def test_all_triplets_of_two_very_unequal_classes_are_counted_exactly() -> None:
    from oodml.losses.tuples import weights_in_triplets

    labels = torch.zeros(401, dtype=torch.int64)
    assert weights_in_triplets(torch.zeros(401, 401), labels, -1.0)[2] == 0
    labels[-1] = 1
    assert weights_in_triplets(torch.zeros(401, 401), labels, -1.0)[2] == 400 * 399


def test_pairs_of_all_triplets_are_those_that_listing_them_gives() -> None:
    for name, kind in product(("genlifted", "npair", "histogram", "multisimilarity"), LABELS):
        x, y = batch(kind)
        loss = oodml.make_loss(name, miner="all")
        torch.testing.assert_close(loss(x, y), loss(x, y, oodml.make_miner("all")(x, y)))
    alone = torch.tensor([0, 0, 0, 0])  # no negatives, so no triplets and none of their positives
    x = torch.randn(4, 3)
    assert oodml.make_loss("multisimilarity", miner="all")(x, alone) == 0


def test_a_pair_that_is_positive_and_negative_is_in_both_histograms() -> None:
    x, y = batch("pairs")
    tuples = tuple(torch.tensor(i) for i in ([0, 1], [1, 2], [2, 0]))  # (0, 1) is a positive of 0 and a negative of 1
    u = unit(x)
    near, far = [u[0] @ u[1], u[1] @ u[2]], [u[0] @ u[2], u[1] @ u[0]]
    nodes = np.linspace(-1, 1, 65)

    def histogram(values: list[float]) -> np.ndarray:
        return np.mean([np.maximum(0, 1 - abs(nodes - v) * 32) for v in values], axis=0)

    expected = histogram(far) @ histogram(near).cumsum()
    x.requires_grad_()
    assert oodml.make_loss("histogram")(x, y, tuples).item() == pytest.approx(expected, rel=1e-9)
    loss = oodml.make_loss("histogram")
    assert torch.autograd.gradcheck(lambda e: loss(e, y, tuples), (x,))


def test_quadruplets_that_are_masked_count_in_neither_term() -> None:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, u = torch.tensor([0, 0, 1, 1, 2]), unit(x)  # of the third class there is one sample, so n₂ is known
    a, p, n = (torch.tensor(i) for i in ([0, 1, 2], [1, 0, 3], [2, 3, 0]))
    mask = torch.tensor([True, False, True])
    kept = [(0, 1, 2), (2, 3, 0)]
    expected = mean([max(0, dist(u[i], u[j]) - dist(u[i], u[k]) + 1) for i, j, k in kept])
    expected += mean([max(0, dist(u[i], u[j]) - dist(u[k], u[4]) + 0.5) for i, j, k in kept])
    assert oodml.make_loss("quadruplet")(x, y, Triplets(a, p, n, mask)).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-6, 1e-4, 1.0])
def test_snr_where_the_signal_is_clamped(scale: float) -> None:
    """Value and gradient of var(a − x) / max(var(a), ε), by autograd of the formula itself."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    x[0] = 1 + scale * x[0]
    x = torch.nn.functional.normalize(x).requires_grad_()
    tuples = tuple(torch.tensor([i]) for i in range(3))

    def noise(i: int, j: int) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        return (centred[i] - centred[j]).square().sum() / centred[i].square().sum().clamp_min(1e-8)

    u = x.detach().requires_grad_()
    loss = oodml.make_loss("snr", lam=0.0, margin=1e9)  # the hinge is open, whatever the ratios
    value = loss(u, torch.tensor([0, 0, 1]), tuples)
    expected = noise(0, 1) - noise(0, 2) + 1e9
    value.backward()
    expected.backward()
    torch.testing.assert_close(value.detach() - 1e9, expected.detach() - 1e9, rtol=1e-6, atol=1e-6)
    tangent = x.grad - (x.grad * x).sum(1, keepdim=True) * x  # the part that `unit_rows` leaves
    torch.testing.assert_close(u.grad, tangent.detach(), rtol=1e-6, atol=1e-6 * tangent.norm().item())


@pytest.mark.parametrize("name", ["triplet", "snr", "genlifted", "histogram", "contrastive", "quadruplet", "ntxent"])
def test_tuples_that_point_outside_the_batch_are_refused(name: str) -> None:
    x, y = batch("pairs")
    i, ok = torch.tensor, torch.tensor([True])
    loss = oodml.make_loss(name)
    for bad in (10, -1):
        with pytest.raises(OodmlError, match=r"tuples must index the batch, 0\.\.9"):
            loss(x, y, Triplets(i([0]), i([1]), i([bad]), ok))
    with pytest.raises(OodmlError, match="masks of tuples"):
        loss(x, y, Triplets(i([0]), i([1]), i([2]), i([True, False])))
    with pytest.raises(OodmlError, match="int64"):
        loss(x, y, Triplets(i([0.0]), i([1.0]), i([2.0]), ok))
    with pytest.raises(OodmlError, match="got int"):
        loss(x, y, 5)
    if name not in ("triplet", "snr", "quadruplet"):
        with pytest.raises(OodmlError, match="tuples must index the batch"):
            loss(x, y, Pairs(i([0]), i([1]), i([0]), i([12]), ok, ok))


def test_pairs_are_no_triplets_though_their_masks_are_one() -> None:
    x, y = batch("pairs")
    i, mask = torch.tensor([0, 2]), torch.tensor([True, True])
    loss = oodml.make_loss("margin", num_classes=5, normaliser="triplets")
    with pytest.raises(OodmlError, match="needs triplets"):
        loss(x, y, Pairs(i, i + 1, i, i + 4, mask, mask))


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("contrastive", {}),
        ("margin", {"num_classes": 5, "beta": 0.9}),
        ("margin", {"num_classes": 5, "beta": 0.9, "normaliser": "triplets"}),
    ],
)
def test_all_triplets_need_no_list(kind: str, name: str, options: dict) -> None:
    """Pairs counted as often as they stand in triplets: value and gradients of the list, β included."""
    x, y = batch(kind)
    loss = oodml.make_loss(name, miner="all", **options).double()
    loss.miner.mine = None  # listing would fail
    listed = oodml.make_miner("all")(x, y)
    found = []
    for tuples in (None, listed):
        loss.zero_grad()
        value = loss(x.requires_grad_(), y, tuples)
        found.append([value, *torch.autograd.grad(value, [x, *loss.parameters()])])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("name", ["contrastive", "margin", "triplet", "snr"])
def test_all_triplets_of_a_large_batch_make_no_cubic_tensor(name: str) -> None:
    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for each in result if isinstance(result, list | tuple) else (result,):
                if isinstance(each, Tensor):
                    self.elements = max(self.elements, each.untyped_storage().nbytes() // each.element_size())
            return result

    x, y = torch.randn(256, 8, requires_grad=True), torch.arange(256) // 64
    loss = oodml.make_loss(name, num_classes=4, miner="all")
    with Largest() as largest:
        loss(x, y).backward()
    # `triplet` and `snr` compare pairs (a, p) with all samples in blocks of so many entries.
    assert largest.elements <= max(256**2, 2**22)
    assert name in ("triplet", "snr") or largest.elements <= 2 * 256**2


def test_quadruplets_by_position_as_the_authors_code_has_them() -> None:
    """n₄ is a position of the batch whose mined negative is another one, uniformly, whatever its class."""
    from oodml.losses.quadruplet import choose_by_position

    negative = torch.tensor([3, 3, 1, 0, 0, 2])
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([choose_by_position(negative, 6, generator)[0] for _ in range(3000)])
    for t in range(6):
        allowed = [i for i in range(6) if negative[i] != negative[t]]
        counts = np.bincount(drawn[:, t].numpy(), minlength=6)
        assert counts[[i for i in range(6) if i not in allowed]].sum() == 0
        assert (abs(counts[allowed] / 3000 - 1 / len(allowed)) < 0.04).all()
    _, found = choose_by_position(torch.zeros(6, dtype=torch.int64), 6, None)
    assert not found.any()

    x, y = batch("pairs")
    mined = oodml.make_miner("hard")(x, y)
    loss = oodml.make_loss("quadruplet", miner="hard", fourth="position", generator=torch.Generator().manual_seed(1))
    n4, _ = choose_by_position(mined.negative, 10, torch.Generator().manual_seed(1))
    torch.testing.assert_close(loss(x, y), loss(x, y, (*mined[:3], n4)))
    with pytest.raises(OodmlError, match="needs one triplet for each of the 10 anchors"):
        loss(x, y, tuple(i[:4] for i in mined[:3]))
    with pytest.raises(OodmlError, match="fourth must be"):
        oodml.make_loss("quadruplet", fourth="class-name")
    with pytest.raises(OodmlError, match=r"\(a, p, n, n2\)"):
        loss(x, y, mined[:2])


def test_angular_with_clamped_exponents_as_the_authors_code_has_them() -> None:
    x, y = batch("pairs")
    x = 3 * x
    loss = oodml.make_loss("angular", one_positive=True, clamp=2.0, weight=0.0, nu=0.0)
    raw, labels = x.numpy(), y.tolist()
    terms = []
    for a, p in positive_pairs(labels):
        exponents = [float(np.clip(raw[a] @ raw[n] - raw[a] @ raw[p], -2, 2)) for n in negatives(labels, a)]
        terms.append(math.log1p(sum(map(math.exp, exponents))))
    assert loss(x, y).item() == pytest.approx(mean(terms))
    options = {"one_positive": True, "squared_norm": False}
    wide, free = (oodml.make_loss("angular", clamp=c, **options) for c in (1e6, None))
    torch.testing.assert_close(wide(x, y), free(x, y))
    with pytest.raises(OodmlError, match="one_positive=True"):
        oodml.make_loss("angular", clamp=50.0)
