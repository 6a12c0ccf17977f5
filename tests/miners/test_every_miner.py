"""What every miner must do, and each one's own rule checked anchor by anchor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

import oodml
from oodml import OodmlError
from oodml.miners import Pairs, Triplets, miner_records

NAMES = oodml.list_miners()
RANDOM = ["random", "semihard", "softhard", "distance", "rho", "shared", "intra", "npair"]
LABELS = torch.tensor([0, 1, 1, 1, 2, 2, 3, 1, 0, 2, 4, 0])  # classes 3 and 4 have one sample


def make(name: str, seed: int = 0, **options: Any) -> oodml.miners.Miner:
    return oodml.make_miner(name, generator=torch.Generator().manual_seed(seed), **options)


def batch(seed: int = 0, dim: int = 4, labels: Tensor = LABELS) -> tuple[Tensor, Tensor]:
    return torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(seed)), labels


def exact_distances(x: Tensor) -> np.ndarray:
    u = torch.nn.functional.normalize(x.double()).numpy()
    return np.sqrt(((u[:, None] - u[None]) ** 2).sum(-1))


def rows(mined: Triplets) -> list[tuple[int, int, int]]:
    """The valid triplets."""
    return [tuple(r) for r in torch.stack(mined[:3])[:, mined.mask].T.tolist()]


def draws(miner: oodml.miners.Miner, x: Tensor, y: Tensor, times: int) -> Tensor:
    """(times, 3, b) mined indices."""
    return torch.stack([torch.stack(miner(x, y)[:3]) for _ in range(times)])


def assert_distribution(drawn: Tensor, probabilities: np.ndarray) -> None:
    counts = np.bincount(drawn.numpy(), minlength=len(probabilities))
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    if possible.sum() > 1:
        assert chisquare(counts[possible], counts.sum() * probabilities[possible]).pvalue > 1e-4


def uniform_over(indices: list[int], size: int) -> np.ndarray:
    probabilities = np.zeros(size)
    probabilities[indices] = 1 / len(indices)
    return probabilities


# ---- all miners


def test_the_names_of_the_contract() -> None:
    assert set(NAMES) >= {
        *("random", "semihard", "softhard", "distance", "rho", "hard", "easy-positive", "multisimilarity", "all"),
        *("shared", "intra", "npair", "lifted"),
    }
    assert all(record.summary and record.paper for record in miner_records())


@pytest.mark.parametrize("name", NAMES)
@given(labels=st.lists(st.integers(0, 3), min_size=2, max_size=9), same=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_valid_rows_obey_the_labels(name: str, labels: list[int], same: bool, seed: int) -> None:
    x, y = batch(seed, labels=torch.tensor(labels))
    mined = make(name, seed)(torch.zeros_like(x) if same else x, y)
    indices, masks = (mined[:4], mined[4:]) if isinstance(mined, Pairs) else (mined[:3], mined[3:])
    assert all(mask.dtype == torch.bool for mask in masks)
    assert all(i.dtype == torch.int64 and ((i >= 0) & (i < len(labels))).all() for i in indices)
    if isinstance(mined, Pairs):
        a1, p, a2, n = (i.tolist() for i in (*(j[mined.positive_mask] for j in mined[:2]), *mined[2:4]))
        assert all(labels[i] == labels[j] and i != j for i, j in zip(a1, p, strict=True))
        kept = zip(a2, n, mined.negative_mask.tolist(), strict=True)
        assert all(labels[i] != labels[j] for i, j, valid in kept if valid)
        return
    for a, p, n in rows(mined):
        if name == "shared":
            assert len({labels[a], labels[p], labels[n]}) == 3
        elif name == "intra":
            assert len({a, p, n}) == 3
            assert labels[a] == labels[p] == labels[n]
        elif name == "rho" and a == p:
            assert labels[a] == labels[n]
            assert a != n
        else:
            assert labels[a] == labels[p] != labels[n]
            assert a != p
    if name not in ("all", "easy-positive"):
        assert mined.anchor.tolist() == list(range(len(labels)))
        possible = [_possible(name, labels, a) for a in range(len(labels))]
        if name != "rho":
            assert mined.mask.tolist() == possible


def _possible(name: str, labels: list[int], a: int) -> bool:
    if name == "shared":
        return len(set(labels)) > 2
    if name == "intra":
        return labels.count(labels[a]) > 2
    return labels.count(labels[a]) > 1 and len(set(labels)) > 1


@pytest.mark.parametrize("name", NAMES)
def test_one_seed_one_answer_and_the_global_generator_untouched(name: str) -> None:
    x, y = batch()
    state = torch.get_rng_state()
    first, again, other = make(name, 3)(x, y), make(name, 3)(x, y), make(name, 4)(x, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(i, j) for i, j in zip(first, again, strict=True))
    if name not in RANDOM:
        assert all(torch.equal(i, j) for i, j in zip(first, other, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_given_distances_replace_those_of_the_embeddings_and_nothing_is_differentiated(name: str) -> None:
    x, y = batch()
    given = torch.from_numpy(exact_distances(x))
    for distances in (given, given.float().requires_grad_()):
        mined = make(name)(x.requires_grad_() * 3, y, distances)
        expected = make(name)(x, y)
        assert all(torch.equal(i, j) for i, j in zip(mined, expected, strict=True))
        assert not any(i.requires_grad for i in mined)
    for wrong in (given[:-1], given.numpy()):
        with pytest.raises(OodmlError, match="distances must be a tensor"):
            make(name)(x, y, wrong)
    for anchors in (0, 13, 1.5, "3"):
        with pytest.raises(OodmlError, match="anchors must be a whole number from 1 to the batch's 12"):
            make(name)(x, y, None, anchors)


@pytest.mark.parametrize("name", ["semihard", "softhard", "distance", "hard", "easy-positive", "multisimilarity"])
def test_given_distances_count_and_not_the_embeddings(name: str) -> None:
    """Of another batch: what is mined is what that one's embeddings would give."""
    labels = torch.arange(40) // 4
    (x, y), (other, _) = batch(0, labels=labels), batch(1, labels=labels)
    given = torch.from_numpy(exact_distances(other))
    mined, own, expected = make(name)(x, y, given), make(name)(x, y), make(name)(other, y)
    assert all(torch.equal(i, j) for i, j in zip(mined, expected, strict=True))
    assert not all(torch.equal(i, j) for i, j in zip(mined, own, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_bf16_autocast_keeps_distances_in_float32(name: str) -> None:
    x, y = batch()
    expected = make(name)(x.bfloat16().float(), y)
    with torch.autocast("cpu", torch.bfloat16):
        mined = make(name)(x.bfloat16(), y)
    assert all(torch.equal(i, j) for i, j in zip(mined, expected, strict=True))


@pytest.mark.parametrize("name", [n for n in NAMES if n != "all"])
def test_static_shapes_in_one_graph(name: str) -> None:
    """Captured whole: no shape and no branch depends on a value. `all` lists as many triplets as there are."""
    x, y = batch()
    miner = oodml.make_miner(name)
    compiled = torch.compile(miner, backend="aot_eager", fullgraph=True)
    assert [i.shape for i in compiled(x, y)] == [i.shape for i in miner(x, torch.zeros_like(y))]
    torch.compiler.reset()


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_names_the_argument(name: str) -> None:
    x, y = batch()
    for embeddings, labels, named in [(x[0], y, "embeddings"), (x, y[:-1], "labels"), (x * math.nan, y, "embeddings")]:
        with pytest.raises(OodmlError, match=named):
            make(name)(embeddings, labels)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in RANDOM])
@pytest.mark.parametrize("given", [True, False])
def test_fewer_anchors_are_the_first_rows_of_all(name: str, given: bool) -> None:
    x, y = batch()
    distances = torch.from_numpy(exact_distances(x))[:5] if given else None
    some, every = make(name)(x, y, distances, 5), make(name)(x, y)
    if isinstance(some, Pairs):
        assert all(torch.equal(i, j[:60]) for i, j in zip(some, every, strict=True))
    else:
        assert rows(some) == [row for row in rows(every) if row[0] < 5]
    with pytest.raises(OodmlError, match=r"\(5, 12\)"):
        make(name)(x, y, torch.zeros(12, 12), 5)


@pytest.mark.parametrize("name", ["random", "semihard", "softhard", "distance", "rho", "shared", "intra"])
def test_fewer_anchors_draw_from_all_samples(name: str) -> None:
    """Every pair of partners that all anchors can draw, some anchors can, and no other."""
    x, y = batch(labels=LABELS[:9])
    few, all_ = make(name), make(name, seed=1)

    def seen(*arguments: Any, miner: oodml.miners.Miner) -> set[tuple[int, int, int]]:
        return {row for _ in range(200) for row in rows(miner(x, y, *arguments)) if row[0] < 3}

    assert seen(None, 3, miner=few) == seen(miner=all_)


# ---- each miner's rule


def test_random_is_uniform() -> None:
    x, y = batch()
    drawn = draws(make("random"), x, y, 2000)
    labels = y.tolist()
    for a in (0, 1, 4):
        assert_distribution(
            drawn[:, 1, a], uniform_over([i for i in range(12) if labels[i] == labels[a] and i != a], 12)
        )
        assert_distribution(drawn[:, 2, a], uniform_over([i for i in range(12) if labels[i] != labels[a]], 12))


@pytest.mark.parametrize("margin", [None, 0.2])
def test_semihard_negatives_lie_beyond_the_positive(margin: float | None) -> None:
    x, y = batch()
    d = exact_distances(x)
    seen: dict[tuple[int, int], list[int]] = {}
    for triplets in draws(make("semihard", margin=margin), x, y, 1500):
        for a, p, n in triplets.T.tolist()[:3]:
            seen.setdefault((a, p), []).append(n)
    for (a, p), drawn in seen.items():
        negatives = [n for n in range(12) if y[n] != y[a]]
        wanted = [n for n in negatives if d[a, p] < d[a, n] and (margin is None or d[a, n] < d[a, p] + margin)]
        assert_distribution(torch.tensor(drawn), uniform_over(wanted or negatives, 12))


def test_softhard_draws_among_the_hard_candidates() -> None:
    x, y = batch()
    d = exact_distances(x)
    drawn = draws(make("softhard"), x, y, 1500)
    for a in (0, 1, 4, 9):
        positives = [i for i in range(12) if y[i] == y[a] and i != a]
        negatives = [i for i in range(12) if y[i] != y[a]]
        hard_p = [p for p in positives if d[a, p] > min(d[a, n] for n in negatives)]
        hard_n = [n for n in negatives if d[a, n] < max(d[a, p] for p in positives)]
        assert_distribution(drawn[:, 1, a], uniform_over(hard_p or positives, 12))
        assert_distribution(drawn[:, 2, a], uniform_over(hard_n or negatives, 12))


def inverse_density(d: np.ndarray, dim: int, lower: float = 0.5) -> np.ndarray:
    d = np.maximum(d, lower)
    return 1 / (d ** (dim - 2) * (1 - d**2 / 4) ** ((dim - 3) / 2))


@pytest.mark.parametrize("upper", [1.4, None, 0.6])
def test_distance_weighted_negatives_follow_the_inverse_density(upper: float | None) -> None:
    x, y = batch(seed=1)
    d = exact_distances(x)
    drawn = draws(make("distance", upper=upper), x, y, 2000)
    fell_back = 0
    for a in (0, 1, 4, 5):
        weights = np.where(y.numpy() != y[a].item(), inverse_density(d[a], 4), 0.0)
        within = weights * (d[a] <= (upper or 9))
        fell_back += not within.any()
        weights = within if within.any() else (weights > 0).astype(float)
        assert_distribution(drawn[:, 2, a], weights / weights.sum())
        assert_distribution(drawn[:, 1, a], uniform_over([i for i in range(12) if y[i] == y[a] and i != a], 12))
    assert fell_back == 0 if upper != 0.6 else fell_back > 0  # with .6, some anchor has no negative within


@pytest.mark.parametrize("dim", [2, 3, 128, 4096])
def test_distance_weights_are_finite_for_equal_and_opposite_points(dim: int) -> None:
    from oodml.miners.distance import log_inverse_density

    d = torch.tensor([0.0, 1e-4, 0.5, 1.0, 1.4, 1.999, 2.0, 2.0000002])
    log_weights = log_inverse_density(d, dim)
    assert torch.isfinite(log_weights).all()
    inner = d[2:6].double().numpy()
    expected = (2 - dim) * np.log(inner) - (dim - 3) / 2 * np.log(1 - inner**2 / 4)
    np.testing.assert_allclose(log_weights[2:6].numpy(), expected, rtol=1e-4, atol=1e-4)
    x = torch.zeros(4, dim)
    x[:, 0] = torch.tensor([1.0, 1.0, -1.0, -1.0])
    for labels in ([0, 0, 1, 1], [0, 1, 0, 1]):  # negatives at d = 2 only; at d = 0 and d = 2
        for upper in (1.4, None):
            assert make("distance", upper=upper)(x, torch.tensor(labels)).mask.all()


def test_rho_pushes_within_the_class_as_often_as_it_says() -> None:
    x, y = batch()
    drawn = draws(make("rho", base="random", p_switch=0.3), x, y, 2000)
    a, p, n = drawn[:, :, [1, 2, 3, 7]].unbind(1)
    switched = a == p
    assert switched.double().mean().item() == pytest.approx(0.3, abs=0.02)
    assert (y[n[switched]] == 1).all()
    assert (n[switched] != a[switched]).all()
    assert (y[n[~switched]] != 1).all()
    assert_distribution(n[:, 0][switched[:, 0]], uniform_over([2, 3, 7], 12))


@pytest.mark.parametrize("base", ["random", "hard", "shared", "all", "easy-positive"])
def test_a_switched_triplet_has_a_mate_of_its_class_uniformly(base: str) -> None:
    """Whether the base drew a positive already (random), one for each anchor, or any number of triplets."""
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    mined = make("rho", base=base, p_switch=0.4)
    found = [mined(x, labels) for _ in range(60 if base == "all" else 2500)]
    a, p, n, mask = (torch.cat(part) for part in zip(*found, strict=True))
    first = (a == 0) & mask
    switched = first & (p == 0)
    assert switched.sum().item() / first.sum().item() == pytest.approx(0.4, abs=0.05)
    assert_distribution(n[switched], uniform_over([1, 2, 3], 7))
    lonely = a == 6  # the only sample of its class has no mate, so a switched triplet of it does not count
    assert not (lonely & (p == 6) & mask).any()


@pytest.mark.parametrize("base", [n for n in NAMES if n not in ("rho", "npair", "lifted", "multisimilarity")])
@pytest.mark.parametrize("labels", [torch.zeros(12, dtype=torch.int64), torch.arange(12) // 2, LABELS])
def test_rho_switches_triplets_and_makes_none(base: str, labels: Tensor) -> None:
    """An anchor for which the base finds none has none to switch; one with a mate keeps as many as it had."""
    x, y = batch(labels=labels)
    plain, mined = make(base)(x, y), make("rho", base=base, p_switch=0.5)(x, y)
    assert not (mined.mask & ~plain.mask).any()
    mates = (y[:, None] == y).sum(1)[mined.anchor] > 1
    assert torch.equal(mined.mask[mates], plain.mask[mates])


def test_rho_names_what_is_wrong_with_its_base() -> None:
    for base in ({"upper": 1.0}, 3, None):
        with pytest.raises(OodmlError, match="base must be a name, a dict with a 'name' or a miner"):
            make("rho", base=base)


def test_rho_wraps_any_triplet_miner_and_leaves_it_alone_at_zero() -> None:
    x, y = batch()
    for base in ("hard", "all", {"name": "distance", "upper": None}, oodml.make_miner("easy-positive")):
        make("rho", base=base, p_switch=0.5)(x, y)
    mined, plain = make("rho", base="hard", p_switch=0.0)(x, y), make("hard")(x, y)
    assert all(torch.equal(i, j) for i, j in zip(mined, plain, strict=True))
    with pytest.raises(OodmlError, match="pairs"):
        make("rho", base="lifted")(x, y)
    for p_switch in (1.5, "a", None):
        with pytest.raises(OodmlError, match="p_switch"):
            make("rho", p_switch=p_switch)


def test_rho_has_a_gradient_with_two_samples_a_class() -> None:
    classes = torch.randn(4, 4).repeat_interleave(2, 0)
    x = (classes + 0.1 * torch.randn(8, 4)).requires_grad_()  # near its mate, so within the margin that pushes
    loss = oodml.make_loss("margin", num_classes=4, miner={"name": "rho", "p_switch": 1.0})
    loss(x, torch.arange(8) // 2).backward()
    assert x.grad.abs().sum() > 0


def test_points_equal_to_the_anchor_are_not_farther_than_one_another() -> None:
    """In a batch of seven the products of equal rows differ in their last digits; that must not choose."""
    x = torch.randn(1, 128, generator=torch.Generator().manual_seed(7)).repeat(7, 1)
    y = torch.tensor([0, 0, 1, 1, 2, 2, 2])
    assert not make("easy-positive")(x, y).mask.any()
    for name in ("semihard", "softhard"):
        drawn = draws(make(name), x, y, 1500)
        assert_distribution(drawn[:, 2, 0], uniform_over([2, 3, 4, 5, 6], 7))
        assert_distribution(drawn[:, 1, 4], uniform_over([5, 6], 7))


def test_distances_in_float64_are_told_apart_down_to_the_least_there_is() -> None:
    """What counts as rounding in float32 is a distance there: a batch that has nearly collapsed still has triplets."""
    x = torch.ones(6, 4).double() + 1e-3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
    y = torch.arange(6) // 2
    assert make("easy-positive")(x, y).mask.any()
    near = torch.tensor([[0.0, 2e-4, 1e-4, 5e-4, 8e-4, 1.0]]).double()
    drawn = [make("semihard", i)(x, y, near, 1).negative for i in range(90)]
    assert set(torch.cat(drawn).tolist()) == {3, 4, 5}


@pytest.mark.parametrize(
    "options", [{"lower": None}, {"lower": "a"}, {"upper": "1.4"}, {"lower": 0.0}, {"upper": 0.1}, {"upper": math.nan}]
)
def test_a_range_of_distances_is_one_of_numbers(options: dict[str, Any]) -> None:
    for name in ("distance", "shared"):
        with pytest.raises(OodmlError, match=next(iter(options))):
            make(name, **options)


@pytest.mark.compiler
@pytest.mark.long
@pytest.mark.parametrize("name", RANDOM)
def test_compiled_to_machine_code_with_a_generator(name: str) -> None:
    """The graph breaks where the generator is used; what is drawn is what the miner draws without compiling."""
    x, y = batch(dim=32, labels=torch.arange(64) // 4)
    found, expected = torch.compile(lambda x, y: make(name)(x, y))(x, y), make(name)(x, y)
    assert all(torch.equal(i, j) for i, j in zip(found, expected, strict=True))
    torch.compiler.reset()


def test_hard_takes_the_extremes() -> None:
    x, y = batch()
    d = exact_distances(x)
    for a, p, n in rows(make("hard")(x, y)):
        assert d[a, p] == max(d[a, i] for i in range(12) if y[i] == y[a] and i != a)
        assert d[a, n] == min(d[a, i] for i in range(12) if y[i] != y[a])


def test_easy_positive_and_its_semihard_negative() -> None:
    x, y = batch()
    d = exact_distances(x)
    mined = make("easy-positive")(x, y)
    for a in range(12):
        positives = [i for i in range(12) if y[i] == y[a] and i != a]
        beyond = [n for n in range(12) if positives and y[n] != y[a] and d[a, n] > min(d[a, p] for p in positives)]
        assert mined.mask[a] == bool(beyond)
        if beyond:
            assert d[a, mined.positive[a]] == min(d[a, p] for p in positives)
            assert d[a, mined.negative[a]] == min(d[a, n] for n in beyond)


def test_all_lists_every_triplet_once() -> None:
    x, y = batch()
    expected = [
        (a, p, n) for a in range(12) for p in range(12) for n in range(12) if a != p and y[a] == y[p] and y[a] != y[n]
    ]
    assert rows(make("all")(x, y)) == expected


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_multisimilarity_keeps_the_informative_pairs(epsilon: float) -> None:
    x, y = batch()
    s = 1 - exact_distances(x) ** 2 / 2
    pairs = make("multisimilarity", epsilon=epsilon)(x, y)
    kept_p = set(zip(pairs.a1[pairs.positive_mask].tolist(), pairs.p[pairs.positive_mask].tolist(), strict=True))
    kept_n = set(zip(pairs.a2[pairs.negative_mask].tolist(), pairs.n[pairs.negative_mask].tolist(), strict=True))
    expected_p, expected_n = set(), set()
    for a in range(12):
        positives = [i for i in range(12) if y[i] == y[a] and i != a]
        negatives = [i for i in range(12) if y[i] != y[a]]
        expected_n |= {(a, n) for n in negatives if positives and s[a, n] + epsilon > min(s[a, p] for p in positives)}
        expected_p |= {(a, p) for p in positives if s[a, p] - epsilon < max(s[a, n] for n in negatives)}
    assert kept_p == expected_p
    assert kept_n == expected_n


@pytest.mark.parametrize("mode", ["full", "standard"])
def test_shared_partners_come_from_two_further_classes_by_distance(mode: str) -> None:
    x, y = batch(seed=2)
    d, labels = exact_distances(x), y.numpy()
    drawn = draws(make("shared", mode=mode, upper=None), x, y, 3000)
    for a in (0, 1):
        weights = np.where(labels != labels[a], inverse_density(d[a], 4), 0.0)
        assert_distribution(drawn[:, 2, a], weights / weights.sum())
        n = int(drawn[:, 2, a].mode().values)
        third = (labels != labels[a]) & (labels != labels[n])
        weights = np.where(third, inverse_density(d[a], 4) if mode == "full" else 1.0, 0.0)
        assert_distribution(drawn[drawn[:, 2, a] == n, 1, a], weights / weights.sum())


def test_shared_permuted_mines_by_shuffled_labels() -> None:
    x, y = batch(labels=torch.arange(12) // 4)
    drawn = draws(make("shared", mode="permuted"), x, y, 300)
    same_class = (y[drawn[:, 1]] == y[drawn[:, 0]]).double().mean().item()
    assert same_class == pytest.approx(3 / 11, abs=0.04)  # a positive is any other sample
    with pytest.raises(OodmlError, match="mode"):
        make("shared", mode="half")


def test_intra_draws_three_of_a_class() -> None:
    x, y = batch()
    drawn = draws(make("intra"), x, y, 2000)
    assert_distribution(drawn[:, 1, 1], uniform_over([2, 3, 7], 12))
    assert_distribution(drawn[:, 2, 1], uniform_over([2, 3, 7], 12))
    replaced = draws(make("intra", distinct=False), x, y, 2000)
    assert_distribution(replaced[:, 1, 1], uniform_over([1, 2, 3, 7], 12))
    assert_distribution(replaced[:, 2, 1], uniform_over([1, 2, 3, 7], 12))
    assert make("intra", distinct=False)(x[:4], torch.tensor([0, 0, 1, 1])).mask.all()


def test_npair_takes_one_positive_and_lifted_takes_all() -> None:
    x, y = batch()
    one, every = make("npair")(x, y), make("lifted")(x, y)
    positives = (y[:, None] == y) & ~torch.eye(12, dtype=torch.bool)
    assert torch.equal(every.positive_mask.view(12, 12), positives)
    assert torch.equal(every.negative_mask.view(12, 12), y[:, None] != y)
    assert torch.equal(one.negative_mask, every.negative_mask)
    assert torch.equal(one.positive_mask.view(12, 12).sum(1), positives.any(1).long())
    miner = make("npair")
    drawn = torch.stack([miner(x, y).positive_mask.view(12, 12)[1].long().argmax() for _ in range(2000)])
    assert_distribution(drawn, uniform_over([2, 3, 7], 12))


def test_shared_clamps_distances_below_as_it_is_told() -> None:
    """Negatives at .3 and 1: clamped at 1 they weigh alike, clamped at .2 the near one takes all but a little."""
    angle = [0.0, 0.301, 1.047, 2.0]  # on a circle inside 64 dimensions
    x = torch.zeros(4, 64)
    x[:, 0], x[:, 1] = torch.tensor(angle).cos(), torch.tensor(angle).sin()
    y = torch.arange(4)
    for lower, expected in ((1.0, 0.5), (0.2, 0.0)):
        drawn = draws(make("shared", lower=lower, upper=1.2), x, y, 1000)[:, 2, 0]
        assert set(drawn.tolist()) <= {1, 2}
        assert (drawn == 2).double().mean().item() == pytest.approx(expected, abs=0.06)


def test_nonsense_is_refused() -> None:
    for name, options, named in (
        ("semihard", {"margin": -1.0}, "margin"),
        ("multisimilarity", {"epsilon": float("nan")}, "epsilon"),
    ):
        with pytest.raises(OodmlError, match=named):
            make(name, **options)
    with pytest.raises(OodmlError, match=r"generator must be a torch\.Generator"):
        oodml.make_miner("random", generator=0)


def test_a_bad_range_of_distances_is_refused() -> None:
    for options in ({"lower": 0.0}, {"lower": 1.5, "upper": 1.4}):
        with pytest.raises(OodmlError, match="lower"):
            make("distance", **options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: host synchronisation cannot be observed")
@pytest.mark.parametrize("seed_on", ["nowhere", "cpu", "cuda"])
@pytest.mark.parametrize("name", [n for n in NAMES if n != "all"])
def test_no_host_synchronisation_on_a_gpu(name: str, seed_on: str) -> None:
    x, y = (t.cuda() for t in batch())
    generator = None if seed_on == "nowhere" else torch.Generator(seed_on).manual_seed(0)
    miner = oodml.make_miner(name, generator=generator)
    miner(x, y)
    torch.cuda.set_sync_debug_mode("error")
    try:
        miner(x, y)
    finally:
        torch.cuda.set_sync_debug_mode("default")
