"""What every registered objective must do, whatever its formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import oodml
from oodml import OodmlError
from oodml.losses import loss_record, loss_records
from oodml.losses.registry import REGISTRY

CLASSES, DIM = 6, 5
NAMES = oodml.list_losses()
PAPERS = [
    *("contrastive", "triplet", "genlifted", "npair", "angular", "arcface", "histogram", "margin"),
    *("multisimilarity", "proxynca", "proxyanchor", "quadruplet", "snr", "softtriple", "normsoftmax"),
]
BEYOND = ["ntxent", "infonce", "supcon", "circle", "cosface", "proxynca++", "smoothap", "crossbatch"]
TRIPLET = [r.name for r in loss_records() if r.default_miner == "distance"]
MINED = [r.name for r in loss_records() if r.default_miner is not None]


def build(name: str, **options: Any) -> oodml.losses.Loss:
    """With its own generator; in evaluation mode, where a memory is read and not written."""
    generator = torch.Generator().manual_seed(0)
    if name == "crossbatch":
        options = {"base": "multisimilarity", **options}  # one that draws nothing at random
    return oodml.make_loss(name, num_classes=CLASSES, embedding_dim=DIM, generator=generator, **options).eval()


def batch(size: int = 12, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, DIM, generator=generator, dtype=dtype), torch.arange(size) % CLASSES


def all_quadruplets(labels: Tensor) -> tuple[Tensor, ...]:
    """Every (a, p, n, n2) of a small batch."""
    y = labels.tolist()
    r = range(len(y))
    found = [
        (a, p, n, k)
        for a in r
        for p in r
        for n in r
        for k in r
        if a != p and y[a] == y[p] and len({y[a], y[n], y[k]}) == 3
    ]
    return tuple(torch.tensor(found).T)


def tuples_for(name: str, labels: Tensor) -> tuple[Tensor, ...] | None:
    """Explicit tuples for a loss that mines at random; None for the others."""
    if name not in TRIPLET:
        return None
    quadruplets = all_quadruplets(labels)
    return quadruplets if name == "quadruplet" else quadruplets[:3]


def test_every_name_of_the_contract_is_there_with_its_paper_and_summary() -> None:
    for name in PAPERS + BEYOND:
        record = loss_record(name)
        assert record.summary and record.paper, name
        assert bool(record.has_parameters) == bool(list(build(name).parameters())), name
        assert all(option in record.defaults for option in record.search), name


@pytest.mark.parametrize("name", [n for n in NAMES if n != "circle"])  # its weights are constants to the gradient
def test_the_gradient_is_the_derivative(name: str) -> None:
    embeddings, labels = batch(8, torch.float64)
    labels = labels // 2
    softer = {"temperature": 0.2} if name == "smoothap" else {}  # the default is steeper than finite differences see
    loss = build(name, **softer).double()
    tuples = tuples_for(name, labels)
    inputs = (embeddings.requires_grad_(), *loss.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: loss(x, labels, tuples), inputs)


@pytest.mark.parametrize("name", ["triplet", "snr"])
def test_the_gradient_over_all_triplets_is_the_derivative(name: str) -> None:
    embeddings, labels = batch(9, torch.float64)
    loss = build(name, miner="all")
    assert torch.autograd.gradcheck(lambda x: loss(x, labels // 2), embeddings.requires_grad_())


@pytest.mark.parametrize("name", NAMES)
@given(
    labels=st.lists(st.integers(0, CLASSES - 1), min_size=2, max_size=8),
    duplicates=st.sampled_from(["none", "all", "two"]),
    exponent=st.integers(-30, 37),
    seed=st.integers(0, 99),
)
@settings(max_examples=20, deadline=None)
def test_finite_whatever_the_batch(name: str, labels: list[int], duplicates: str, exponent: int, seed: int) -> None:
    """Batches of two, of one class, without positives, with equal points, of tiny and huge norms."""
    embeddings = torch.randn(len(labels), DIM, generator=torch.Generator().manual_seed(seed))
    if duplicates == "all":
        embeddings[:] = embeddings[0]
    elif duplicates == "two":
        embeddings[-1] = embeddings[0]
    loss = build(name)
    if not loss.normalise:
        exponent = min(exponent, 15)  # of what is not on the sphere, the squares are part of the value
    embeddings = (embeddings * 10.0**exponent).requires_grad_()
    value = loss(embeddings, torch.tensor(labels))
    value.backward()
    assert value.shape == ()
    assert torch.isfinite(value)
    assert value.item() >= -1e-5 or name in ("proxynca", "softtriple")  # these two may be negative
    assert torch.isfinite(embeddings.grad).all()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in loss.parameters())


@pytest.mark.parametrize("name", NAMES)
@given(order=st.permutations(range(8)))
@settings(max_examples=5, deadline=None)
def test_the_order_of_the_batch_does_not_matter(name: str, order: list[int]) -> None:
    embeddings, labels = batch(8, torch.float64)
    labels, permutation = labels // 2, torch.tensor(order)
    loss, tuples = build(name).double(), tuples_for(name, labels)
    place = permutation.argsort()  # where each sample went
    moved = None if tuples is None else tuple(place[i] for i in tuples)
    torch.testing.assert_close(
        loss(embeddings[permutation], labels[permutation], moved), loss(embeddings, labels, tuples)
    )


@pytest.mark.parametrize("name", [n for n in NAMES if not loss_record(n).has_parameters])
def test_which_numbers_the_labels_are_does_not_matter(name: str) -> None:
    embeddings, labels = batch(8, torch.float64)
    labels = labels // 2
    loss, tuples = build(name), tuples_for(name, labels)
    torch.testing.assert_close(loss(embeddings, labels * 1000 - 7, tuples), loss(embeddings, labels, tuples))


@pytest.mark.parametrize("name", NAMES)
def test_the_length_of_embeddings_matters_only_where_they_are_not_normalised(name: str) -> None:
    embeddings, labels = batch(dtype=torch.float64)
    loss, tuples = build(name).double(), tuples_for(name, labels)
    lengths = torch.linspace(0.5, 2, len(labels), dtype=torch.float64)[:, None]
    same = torch.allclose(loss(embeddings * lengths, labels, tuples), loss(embeddings, labels, tuples))
    assert same == loss.normalise
    assert loss.normalise == (name not in ("genlifted", "npair", "angular"))


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_and_autocast_compute_in_float32(name: str) -> None:
    embeddings, labels = batch()
    rounded = embeddings.bfloat16()
    tuples = tuples_for(name, labels)
    loss = build(name)
    exact = loss(rounded.float(), labels, tuples)
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(rounded.requires_grad_(), labels, tuples)
    value.backward()
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, exact, rtol=0, atol=0)
    assert torch.isfinite(rounded.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_names_the_argument(name: str) -> None:
    loss = build(name)
    x, y = batch()
    nan = x.clone()
    nan[3, 2] = torch.nan
    for embeddings, labels, named in [
        (x[0], y, "embeddings"),
        (x[None], y, "embeddings"),
        (x.long(), y, "embeddings"),
        (x.numpy(), y, "embeddings"),
        (x[:1], y[:1], "embeddings"),
        (nan, y, "embeddings"),
        (x / 0, y, "embeddings"),
        (x, y[:-1], "labels"),
        (x, y[:, None], "labels"),
        (x, y.float(), "labels"),
        (x, y.tolist(), "labels"),
    ]:
        with pytest.raises(OodmlError, match=named):
            loss(embeddings, labels)


@pytest.mark.parametrize("name", [r.name for r in loss_records() if r.has_parameters])
def test_labels_beyond_the_classes_are_refused(name: str) -> None:
    x, y = batch()
    for wrong in (y + 1, y - 1):
        with pytest.raises(OodmlError, match=f"labels must lie in 0..{CLASSES - 1}"):
            build(name)(x, wrong)


@pytest.mark.parametrize("name", MINED)
def test_bad_tuples_are_refused(name: str) -> None:
    x, y = batch()
    a = torch.tensor([0, 1])
    for wrong in [(a, a), (a, a, a[:1]), (a.float(), a, a), (a, a, a + 100), (a - 1, a, a), ([0], [1], [2])]:
        with pytest.raises(OodmlError, match="tuples"):
            build(name)(x, y, wrong)


@pytest.mark.parametrize("name", NAMES)
def test_a_miner_where_nothing_is_mined_is_refused(name: str) -> None:
    if loss_record(name).default_miner is None and name != "crossbatch":
        with pytest.raises(OodmlError, match="mines no tuples"):
            build(name, miner="distance")
    with pytest.raises(OodmlError, match=r"distnce|mines no tuples"):
        build(name, miner="distnce")


def test_a_miner_is_a_name_a_dict_or_a_miner() -> None:
    assert build("margin", miner={"name": "distance", "upper": None}).miner.upper is None
    given = oodml.make_miner("hard")
    assert build("margin", miner=given).miner is given
    for wrong in ({"upper": None}, 3):
        with pytest.raises(OodmlError, match="name"):
            build("margin", miner=wrong)


def test_a_misspelt_option_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(OodmlError, match="'margin'"):
        build("triplet", margn=0.1)
    with pytest.raises(OodmlError, match="'multisimilarity'"):
        oodml.make_loss("multi_similarity")


@pytest.mark.parametrize("name", [n for n in NAMES if n != "crossbatch"])  # a memory is state, not a function
def test_a_step_is_one_graph_without_a_look_at_a_value(name: str) -> None:
    """Captured whole: no shape and no branch depends on a value, so nothing on a GPU waits for the host."""
    embeddings, labels = batch()
    loss = oodml.make_loss(name, num_classes=CLASSES, embedding_dim=DIM)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    compiled(embeddings.requires_grad_(), labels).backward()
    assert torch.isfinite(embeddings.grad).all()
    tuples = tuples_for(name, labels)
    if name not in TRIPLET or tuples is not None:
        torch.testing.assert_close(compiled(embeddings, labels, tuples), loss(embeddings, labels, tuples))
    torch.compiler.reset()


@pytest.mark.compiler
@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_compiled_to_machine_code(name: str) -> None:
    embeddings, labels = batch()
    loss, tuples = build(name), tuples_for(name, labels)
    compiled = torch.compile(loss)
    embeddings.requires_grad_()
    found, expected = compiled(embeddings, labels, tuples), loss(embeddings, labels, tuples)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, embeddings) for value in (found, expected)))
    torch.compiler.reset()


@pytest.mark.compiler
@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@torch._inductor.config.patch(fallback_random=True)  # the same draws as without compiling
def test_compiled_with_its_miner_the_gradient_is_the_same(name: str) -> None:
    """As training on a GPU runs it: loss and miner in one graph."""
    embeddings, labels = batch()
    values = []
    for compiled in (True, False):
        torch.manual_seed(0)
        loss = oodml.make_loss(name, num_classes=CLASSES, embedding_dim=DIM)
        call = torch.compile(loss, dynamic=False) if compiled else loss
        values.append(call(embeddings.requires_grad_(), labels))
    torch.testing.assert_close(*(torch.autograd.grad(value, embeddings) for value in values))
    torch.compiler.reset()


@pytest.mark.compiler
@pytest.mark.long
@pytest.mark.parametrize("name", TRIPLET)
def test_compiled_with_a_miner_that_has_a_generator(name: str) -> None:
    """The graph breaks where the generator is used and goes on behind it; draws are those of the eager loss."""
    embeddings, labels = batch()
    embeddings.requires_grad_()
    found, expected = torch.compile(build(name))(embeddings, labels), build(name)(embeddings, labels)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, embeddings) for value in (found, expected)))
    torch.compiler.reset()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: host synchronisation cannot be observed")
@pytest.mark.parametrize("name", NAMES)
def test_no_host_synchronisation_on_a_gpu(name: str) -> None:
    embeddings, labels = (t.cuda() for t in batch())
    loss = oodml.make_loss(name, num_classes=CLASSES, embedding_dim=DIM).cuda()
    loss(embeddings.requires_grad_(), labels).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss(embeddings, labels).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here to compare with the CPU")
@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradient_on_a_gpu_are_those_of_the_cpu(name: str) -> None:
    found = []
    for device in ("cpu", "cuda"):
        embeddings, labels = (t.to(device) for t in batch())
        torch.manual_seed(0)
        value = build(name).to(device)(embeddings.requires_grad_(), labels)
        value.backward()
        found.append((value.detach().cpu(), embeddings.grad.cpu()))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


class TestForeignModules:
    """`register_loss` takes any factory of modules of (embeddings, labels)."""

    @pytest.fixture
    def name(self) -> Any:
        yield "foreign"
        REGISTRY._records.pop("foreign", None)

    def test_a_peers_loss_trains(self, name: str) -> None:
        from pytorch_metric_learning import losses

        oodml.register_loss(
            name, lambda num_classes, embedding_dim: losses.NormalizedSoftmaxLoss(num_classes, embedding_dim)
        )
        loss = oodml.make_loss(name, num_classes=CLASSES, embedding_dim=DIM)
        embeddings, labels = batch()
        model = nn.Linear(DIM, DIM)
        groups = [{"params": model.parameters(), "lr": 0.05}, *loss.param_groups(0.05)]
        optimiser = torch.optim.Adam(groups)
        values = []
        for _ in range(60):
            optimiser.zero_grad()
            value = loss(model(embeddings), labels)
            value.backward()
            optimiser.step()
            values.append(value.item())
        assert values[-1] < 0.2 * values[0]
        with pytest.raises(OodmlError, match="embeddings"):
            loss(embeddings[:1], labels[:1])

    def test_explicit_tuples_are_handed_on(self, name: str) -> None:
        from pytorch_metric_learning import losses

        oodml.register_loss(name, lambda: losses.TripletMarginLoss())
        embeddings, labels = batch()
        tuples = tuple(torch.tensor([i]) for i in (0, 6, 1))
        peer = losses.TripletMarginLoss()
        assert oodml.make_loss(name)(embeddings, labels, tuples) == peer(embeddings, labels, tuples)

    def test_mined_tuples_become_the_peers(self, name: str) -> None:
        """Its four index tensors are pairs, ours are triplets and their mask."""
        from pytorch_metric_learning import losses

        oodml.register_loss(name, lambda: losses.TripletMarginLoss())
        embeddings, labels = batch()
        mined = oodml.make_miner("hard")(embeddings, labels)
        mined = mined._replace(mask=mined.mask & (torch.arange(len(labels)) > 2))
        peer = losses.TripletMarginLoss()
        expected = peer(embeddings, labels, tuple(i[mined.mask] for i in mined[:3]))
        assert oodml.make_loss(name)(embeddings, labels, mined) == expected

    def test_pairs_become_the_peers(self, name: str) -> None:
        from pytorch_metric_learning import losses

        oodml.register_loss(name, lambda: losses.ContrastiveLoss())
        embeddings, labels = batch()
        a1, p, a2, n, positive, negative = oodml.make_miner("multisimilarity")(embeddings, labels)
        pairs = (a1[positive], p[positive], a2[negative], n[negative])
        expected = losses.ContrastiveLoss()(embeddings, labels, pairs)
        mined = oodml.miners.Pairs(a1, p, a2, n, positive, negative)
        assert oodml.make_loss(name)(embeddings, labels, mined) == expected

    def test_labels_out_of_range_are_named(self, name: str) -> None:
        from pytorch_metric_learning import losses

        oodml.register_loss(
            name, lambda num_classes, embedding_dim: losses.NormalizedSoftmaxLoss(num_classes, embedding_dim)
        )
        embeddings, labels = batch()
        loss = oodml.make_loss(name, num_classes=CLASSES, embedding_dim=DIM)
        with pytest.raises(OodmlError, match=f"labels must lie in 0..{CLASSES - 1}"):
            loss(embeddings, labels + CLASSES)

    def test_one_that_uses_raw_embeddings_shapes_no_sphere(self, name: str) -> None:
        """Whoever embeds test images must then leave them as they are."""
        from pytorch_metric_learning import distances, losses

        for distance in (distances.LpDistance, distances.DotProductSimilarity):
            for normalised in (True, False):
                given = losses.TripletMarginLoss(distance=distance(normalize_embeddings=normalised))
                oodml.register_loss(name, lambda given=given: given, replace=True)
                assert oodml.make_loss(name).normalise == normalised
        given.normalise = True  # its own word counts
        assert oodml.make_loss(name).normalise

    def test_its_own_options_and_param_groups(self, name: str) -> None:
        class Scaled(nn.Module):
            def __init__(self, scale: float = 2.0) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.tensor(scale))

            def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
                return self.weight * embeddings.sum()

        oodml.register_loss(name, Scaled, summary="nothing useful")
        (group,) = oodml.make_loss(name, scale=3.0).param_groups(0.1)
        assert group["params"][0].item() == 3.0
        assert (group["lr"], group["weight_decay"]) == (0.1, 0.0)
        with pytest.raises(OodmlError, match="scale"):
            oodml.make_loss(name, scle=3.0)

    def test_a_factory_of_something_else_is_refused(self, name: str) -> None:
        oodml.register_loss(name, lambda: print)
        with pytest.raises(OodmlError, match=r"nn\.Module"):
            oodml.make_loss(name)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "circle"])  # its weights are constants to the gradient
def test_the_second_derivative_is_that_of_the_gradient(name: str) -> None:
    embeddings, labels = batch(8, torch.float64)
    labels = labels // 2
    softer = {"temperature": 0.2} if name == "smoothap" else {}
    loss = build(name, **softer).double()
    tuples = tuples_for(name, labels)
    inputs = (embeddings.requires_grad_(), *loss.parameters())
    assert torch.autograd.gradgradcheck(lambda x, *_: loss(x, labels, tuples), inputs)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_that_make_no_sense_are_refused(name: str) -> None:
    """Every hyperparameter that is a number by default, NaN and text; those that scale or weigh, negative."""
    may_be_negative = {"circle": {"margin"}, "genlifted": {"margin"}, "multisimilarity": {"lam"}}
    for option, default in loss_record(name).defaults.items():
        if isinstance(default, bool) or not isinstance(default, int | float):
            continue
        wrong: list[object] = [float("nan"), "much"]
        if option not in may_be_negative.get(name, ()):
            wrong.append(-1.0 if isinstance(default, float) else -1)
        if isinstance(default, int):
            wrong.append(default + 0.5)
        for value in wrong:
            with pytest.raises(OodmlError, match=option):
                build(name, **{option: value})


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("name", NAMES)
def test_labels_may_be_any_whole_numbers(name: str, dtype: torch.dtype) -> None:
    x, y = torch.randn(8, DIM, generator=torch.Generator().manual_seed(0)), torch.arange(8) // 2
    torch.testing.assert_close(build(name)(x, y.to(dtype)), build(name)(x, y))


@pytest.mark.parametrize("wrong", ["5", 2.5, 0])
def test_sizes_are_whole_numbers(wrong: object) -> None:
    with pytest.raises(OodmlError, match="num_classes"):
        oodml.make_loss("margin", num_classes=wrong)
    with pytest.raises(OodmlError, match="embedding_dim"):
        oodml.make_loss("normsoftmax", num_classes=3, embedding_dim=wrong)


def test_any_class_can_be_registered_though_it_takes_any_keyword(monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from pytorch_metric_learning import losses

    oodml.list_losses()
    monkeypatch.setattr(REGISTRY, "_records", dict(REGISTRY._records))
    x, y = torch.randn(8, DIM), torch.arange(8) // 2
    oodml.register_loss("theirs", losses.TripletMarginLoss)
    oodml.register_loss("partly", partial(losses.ContrastiveLoss, neg_margin=0.7))
    loss = oodml.make_loss("theirs", num_classes=4, embedding_dim=DIM, margin=0.3)
    assert loss(x, y) == losses.TripletMarginLoss(margin=0.3)(x, y)
    assert oodml.make_loss("partly")(x, y) == losses.ContrastiveLoss(neg_margin=0.7)(x, y)


def test_labels_of_other_whole_numbers_are_refused_in_a_sentence() -> None:
    embeddings, labels = batch()
    with pytest.raises(OodmlError, match="labels must be whole numbers"):
        build("arcface")(embeddings, labels.to(torch.uint16))


def test_a_loss_and_its_miner_say_what_they_were_made_with() -> None:
    loss = oodml.make_loss("triplet", margin=0.3, miner={"name": "distance", "upper": None})
    assert repr(loss) == "Triplet(margin=0.3, squared=False, miner=DistanceWeighted(lower=0.5))"


def test_hyperparameters_that_are_no_number_are_named() -> None:
    with pytest.raises(OodmlError, match="beta must be a positive number, got tensor"):
        oodml.make_loss("margin", num_classes=2, beta=torch.ones(2))
    with pytest.raises(OodmlError, match="init must be"):
        oodml.make_loss("proxyanchor", num_classes=2, embedding_dim=2, init=["normal"])
