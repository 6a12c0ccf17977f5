"""crossbatch: the plain objective on [batch; memory] with anchors from the batch, by slow loops; memory and resume."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from oodml import OodmlError
from oodml.losses import make_loss
from oodml.miners import make_miner

DIM = 4


def batches(count, size=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, DIM, generator=g, dtype=torch.float64), torch.randint(3, (size,), generator=g))
        for _ in range(count)
    ]


def build(base, **options):
    options = {"memory_size": 15, "num_classes": 3, "embedding_dim": DIM, **options}
    return make_loss("crossbatch", base=base, generator=torch.Generator().manual_seed(0), **options).double()


def remembered(past, size):
    """The last `size` samples of the batches, in any order."""
    return torch.cat([x for x, _ in past])[-size:], torch.cat([y for _, y in past])[-size:]


def pairs_of_anchors(batch, past, size=15):
    """For each sample of the batch: cosines with its positives and its negatives among batch and memory."""
    (x, y), (mx, my) = batch, remembered(past, size)
    x, y = F.normalize(torch.cat([x, mx])), torch.cat([y, my]).tolist()
    s = (x @ x.T).tolist()
    for a in range(len(batch[1])):
        others = [k for k in range(len(y)) if k != a]
        yield [s[a][k] for k in others if y[k] == y[a]], [s[a][k] for k in others if y[k] != y[a]]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def ntxent(anchors):
    return mean(
        -math.log(math.exp(p / 0.07) / (math.exp(p / 0.07) + sum(math.exp(n / 0.07) for n in negatives)))
        for positives, negatives in anchors
        for p in positives
    )


def supcon(anchors):
    return mean(
        mean(-math.log(math.exp(p / 0.1) / sum(math.exp(k / 0.1) for k in positives + negatives)) for p in positives)
        for positives, negatives in anchors
        if positives
    )


def contrastive(anchors):
    anchors = list(anchors)
    d = [([math.sqrt(2 - 2 * p) for p in ps], [math.sqrt(2 - 2 * n) for n in ns]) for ps, ns in anchors]
    return mean(p for ps, _ in d for p in ps) + mean(max(0.0, 1 - n) for _, ns in d for n in ns)


def multisimilarity(anchors):
    terms = []
    for positives, negatives in anchors:
        p = [v for v in positives if negatives and v - 0.1 < max(negatives)]
        n = [v for v in negatives if positives and v + 0.1 > min(positives)]
        pull = math.log(1 + sum(math.exp(-2 * (v - 0.5)) for v in p)) / 2
        terms.append(pull + math.log(1 + sum(math.exp(40 * (v - 0.5)) for v in n)) / 40)
    return mean(terms)


def smoothap(anchors):
    def step(x):
        return 1 / (1 + math.exp(-x / 0.01))

    terms = []
    for positives, negatives in anchors:
        total = 0.0
        for i, p in enumerate(positives):
            among = 1 + sum(step(q - p) for j, q in enumerate(positives) if j != i)
            total += among / (among + sum(step(n - p) for n in negatives))
        if positives:
            terms.append(1 - total / len(positives))
    return mean(terms)


ORACLES = {
    "ntxent": (ntxent, "ntxent"),
    "supcon": (supcon, "supcon"),
    "smoothap": (smoothap, "smoothap"),
    "multisimilarity": (multisimilarity, "multisimilarity"),
    "contrastive": (contrastive, {"name": "contrastive", "miner": "lifted"}),
}


@pytest.mark.parametrize("name", ORACLES)
def test_is_the_objective_on_batch_and_memory_with_anchors_from_the_batch(name):
    oracle, base = ORACLES[name]
    loss, steps = build(base), batches(5)
    loss(*steps[0])
    for i in range(1, len(steps)):  # the memory of 15 fills in the third step and is overwritten in part after
        x, y = steps[i]
        assert loss(x, y).item() == pytest.approx(oracle(pairs_of_anchors(steps[i], steps[:i])), rel=1e-6), i


def test_first_batch_is_the_plain_objective():
    x, y = batches(1)[0]
    for base in ("ntxent", "multisimilarity", "genlifted"):
        torch.testing.assert_close(build(base)(x, y), make_loss(base)(x, y))


class Recorder:
    def __init__(self, miner):
        self.miner, self.generator = miner, None

    def __call__(self, *arguments):
        self.mined = self.miner(*arguments)
        return self.mined


@pytest.mark.parametrize("base", ["triplet", "margin", "snr", "quadruplet"])
def test_mined_tuples_have_anchors_in_the_batch_and_partners_in_both(base):
    miner = Recorder(make_miner("distance", generator=torch.Generator().manual_seed(1)))
    loss, steps = build(base, miner=miner), batches(3)
    loss(*steps[0]), loss(*steps[1])
    x = steps[2][0].requires_grad_()
    value = loss(x, steps[2][1])
    value.backward()
    a, p, n, mask = miner.mined
    keep = mask & (a < 6)
    assert len(a) == 18 and keep.sum() > 0 and (torch.cat([p[keep], n[keep]]) >= 6).any()
    assert torch.isfinite(x.grad).all() and x.grad.abs().sum() > 0
    if base == "triplet":
        union = F.normalize(
            torch.cat([x.detach(), remembered(steps[:2], 15)[0]])
        )  # the memory of 12 is not full, so it stands in order
        terms = [
            max(0.0, (math.dist(union[i], union[j]) - math.dist(union[i], union[k]) + 0.2))
            for i, j, k in zip(a[keep], p[keep], n[keep], strict=True)
        ]
        assert value.item() == pytest.approx(mean(terms), rel=1e-9)


@pytest.mark.parametrize("miner", ["hard", "all"])
def test_triplets_of_the_batch_against_both(miner):
    loss, steps = build("triplet", miner=make_miner(miner)), batches(4)
    for i, (x, y) in enumerate(steps):
        value = loss(x, y)
        if i == 0:
            continue
        d = [
            ([math.sqrt(2 - 2 * v) for v in ps], [math.sqrt(2 - 2 * v) for v in ns])
            for ps, ns in pairs_of_anchors((x, y), steps[:i])
        ]
        if miner == "hard":
            d = [([max(ps)], [min(ns)]) for ps, ns in d if ps and ns]
        terms = [max(0.0, p - n + 0.2) for ps, ns in d for p in ps for n in ns]
        assert value.item() == pytest.approx(mean(terms), rel=1e-6)


@pytest.mark.parametrize("base", ["genlifted", "multisimilarity", "npair", "angular", "ntxent", "histogram"])
def test_gradient_reaches_the_batch_through_both_sides_of_a_pair(base):
    """Each sample of the batch is an anchor and a reference of the others; the memory is a constant."""
    loss, (first, second) = build(base), batches(2)
    loss(*first)
    loss.eval()
    assert torch.autograd.gradcheck(lambda x: loss(x, second[1]), (second[0].requires_grad_(),), eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("base", ["snr", {"name": "snr", "miner": "all"}, {"name": "margin", "miner": "lifted"}])
def test_every_tuple_objective_takes_a_memory(base):
    loss, steps = build(base), batches(4)
    for x, y in steps:
        x.requires_grad_()
        loss(x, y).backward()
        assert torch.isfinite(x.grad).all() and x.grad.abs().sum() > 0


@pytest.mark.parametrize("base", ["genlifted", "npair", "angular", "histogram", "circle"])
def test_every_other_pair_objective_takes_a_memory(base):
    loss, steps = build(base), batches(4)
    for x, y in steps:
        x.requires_grad_()
        value = loss(x, y)
        value.backward()
        assert torch.isfinite(value) and torch.isfinite(x.grad).all() and x.grad.abs().sum() > 0


def test_genlifted_averages_over_the_anchors_of_the_batch():
    loss, steps = build({"name": "genlifted", "nu": 0.0}), batches(2)
    loss(*steps[0])
    (x, y), union = steps[1], torch.cat([steps[1][0], steps[0][0]])
    labels, terms = torch.cat([y, steps[0][1]]), []
    for a in range(len(y)):
        d = (union - union[a]).norm(dim=1)
        positives = (labels == labels[a]) & (torch.arange(12) != a)
        value = d[positives].exp().sum().log() + (1 - d[labels != labels[a]]).exp().sum().log()
        terms.append(max(0.0, value.item()) if positives.any() else 0.0)
    assert loss(x, y).item() == pytest.approx(mean(terms), rel=1e-9)


def test_memory_gets_no_gradient_and_is_stored_as_the_objective_sees_it():
    loss, (first, second) = build("ntxent"), batches(2)
    x = first[0].requires_grad_()
    loss(x, first[1])
    fresh = second[0].clone().requires_grad_()
    loss(fresh, second[1]).backward()
    assert x.grad is None and fresh.grad.abs().sum() > 0 and not loss.memory.requires_grad
    torch.testing.assert_close(loss.memory[:6], F.normalize(first[0].detach()))
    raw = build("npair")
    raw(*second)
    torch.testing.assert_close(raw.memory[:6], second[0])


def test_warmup_neither_fills_nor_uses_the_memory():
    plain, loss, steps = make_loss("ntxent"), build("ntxent", warmup=2), batches(4)
    for x, y in steps[:3]:  # the third is the first to be remembered
        torch.testing.assert_close(loss(x, y), plain(x, y))
    assert loss.filled == 6
    expected = ntxent(pairs_of_anchors(steps[3], steps[2:3]))
    assert loss(*steps[3]).item() == pytest.approx(expected, rel=1e-9)


def test_evaluation_reads_the_memory_and_leaves_it():
    loss, steps = build("ntxent"), batches(2)
    loss(*steps[0])
    loss.eval()
    before = copy.deepcopy(loss.state_dict())
    assert loss(*steps[1]).item() == pytest.approx(ntxent(pairs_of_anchors(steps[1], steps[:1])), rel=1e-9)
    after = loss.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_state_dict_resumes_exactly(cut, tmp_path):
    steps = batches(7)
    whole, first, second = build("ntxent", warmup=1), build("ntxent", warmup=1), build("ntxent", warmup=1)
    expected = [whole(*step) for step in steps]
    for step in steps[:cut]:
        first(*step)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    resumed = [second(*step) for step in steps[cut:]]
    assert all(torch.equal(a, b) for a, b in zip(expected[cut:], resumed, strict=True))


def test_batch_larger_than_the_memory_leaves_its_last_rows():
    loss, ((x, y),) = build("ntxent", memory_size=4), batches(1)
    loss(x, y)
    stored = {tuple(row) for row in loss.memory.tolist()}
    assert stored == {tuple(row) for row in F.normalize(x)[-4:].tolist()}


def test_labels_are_remembered_whole_when_a_later_batch_has_narrow_ones():
    loss, (x, y) = build("ntxent", memory_size=10), batches(1)[0]
    loss(x, y + 256)
    apart = loss.eval()(x, y)
    torch.testing.assert_close(loss(x, y.to(torch.uint8)), apart)  # classes 256.. are not classes 0..
    loss.train()(x, y.to(torch.uint8))
    assert torch.equal(loss.memory_labels, torch.cat([y[2:] + 256, y]))


def test_explicit_tuples_index_batch_then_memory():
    loss, steps = build("triplet"), batches(2)
    loss(*steps[0])
    union = F.normalize(torch.cat([steps[1][0], steps[0][0]]))
    value = loss(*steps[1], tuples=(torch.tensor([0]), torch.tensor([7]), torch.tensor([2])))
    expected = max(0.0, (union[0] - union[7]).norm() - (union[0] - union[2]).norm() + 0.2)
    assert float(value) == pytest.approx(float(expected), rel=1e-9)


def test_parameters_of_the_base_are_trained_at_its_rate():
    (group,) = build("margin").param_groups(1e-5)
    assert group["lr"] == 5e-4 and group["weight_decay"] == 0
    assert build("ntxent").param_groups(1e-5) == []


def test_errors_name_the_argument():
    with pytest.raises(OodmlError, match="embedding_dim="):
        make_loss("crossbatch")
    with pytest.raises(OodmlError, match="'arcface' compares otherwise"):
        build("arcface")
    with pytest.raises(OodmlError, match="'crossbatch' compares otherwise"):
        build("crossbatch")
    with pytest.raises(OodmlError, match="dict with a 'name'"):
        build({"margin": 1.0})
    with pytest.raises(OodmlError, match="base must not hold num_classes"):
        build({"name": "triplet", "num_classes": 5})
    with pytest.raises(OodmlError, match="base has the miner 'hard', and another one was given"):
        build({"name": "triplet", "miner": "hard"}, miner="random")
    with pytest.raises(OodmlError, match="memory_size must be a whole number"):
        build("ntxent", memory_size=0)
    with pytest.raises(OodmlError, match="made for embedding_dim=4"):
        build("ntxent")(torch.randn(3, 5), torch.tensor([0, 0, 1]))


def test_bfloat16_batches_meet_a_float32_memory():
    loss = make_loss("crossbatch", base="multisimilarity", embedding_dim=DIM, memory_size=8)
    for x, y in batches(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(x.bfloat16(), y)
    assert value.dtype == torch.float32 and torch.isfinite(value) and loss.memory.dtype == torch.float32


def test_runs_inside_a_compiled_step():
    plain, loss, steps = build("ntxent"), build("ntxent"), batches(5)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: 2 * loss(x + 1 - 1, y), backend="aot_eager")
    for x, y in steps:
        torch.testing.assert_close(compiled(x, y), 2 * plain(x, y))


def test_a_full_memory_is_compiled_once():
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    plain, loss = build("ntxent", memory_size=8), build("ntxent", memory_size=8)
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend=counter)
    counts = []
    for x, y in batches(8):
        torch.testing.assert_close(compiled(x, y), plain(x, y))
        counts.append(counter.frame_count)
    assert counts[1] == 0 and counts[2] == counts[-1] == 1  # 6 and 12 rows fill it: nothing compiled until then
