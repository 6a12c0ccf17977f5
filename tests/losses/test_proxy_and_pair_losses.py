"""What every objective with proxies or over all pairs must do, whatever its formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oodml import OodmlError
from oodml._tensors import positives_and_negatives
from oodml.losses import loss_record, make_loss

PROXY = ["arcface", "cosface", "normsoftmax", "proxynca", "proxynca++", "proxyanchor", "softtriple"]
PAIR = ["ntxent", "supcon", "circle", "smoothap"]
CLASSES, DIM = 6, 5


def build(name, seed=0, **options):
    g = torch.Generator().manual_seed(seed)
    return make_loss(name, num_classes=CLASSES, embedding_dim=DIM, generator=g, **options)


def batch(size=12, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(size, DIM, generator=g, dtype=dtype), torch.arange(size) * CLASSES // size


# circle's weights are constants to the gradient but not to a finite difference: see test_circle.py.
@pytest.mark.parametrize("name", [name for name in PROXY + PAIR if name != "circle"])
def test_gradient_is_the_derivative(name):
    embeddings, labels = batch(8)
    loss = build(name, **({"temperature": 0.2} if name == "smoothap" else {})).double()
    inputs = (embeddings.requires_grad_(), *loss.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: loss(x, labels), inputs)


LABELS = st.lists(st.integers(0, CLASSES - 1), min_size=2, max_size=8)


@pytest.mark.parametrize("name", PROXY + PAIR)
@given(labels=LABELS, duplicates=st.booleans(), exponent=st.integers(-30, 37), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_finite_whatever_the_batch_and_blind_to_its_order(name, labels, duplicates, exponent, seed):
    """Batches of two, of one class, without positives, with equal points, of tiny and huge norms."""
    g = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(len(labels), DIM, generator=g)
    if duplicates:
        embeddings[:] = embeddings[0]
    embeddings = (embeddings * 10.0**exponent).requires_grad_()
    loss, labels = build(name), torch.tensor(labels)
    value = loss(embeddings, labels)
    value.backward()
    assert value.shape == () and torch.isfinite(value) and torch.isfinite(embeddings.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in loss.parameters())
    order = torch.randperm(len(labels), generator=g)
    torch.testing.assert_close(loss(embeddings[order], labels[order]), value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PROXY + PAIR)
def test_length_of_the_embeddings_does_not_matter(name):
    embeddings, labels = batch()
    lengths = torch.linspace(0.1, 9, len(labels), dtype=torch.float64)[:, None]
    loss = build(name).double()
    torch.testing.assert_close(loss(embeddings * lengths, labels), loss(embeddings, labels))


@pytest.mark.parametrize("name", PAIR)
def test_no_positives_give_zero_and_no_gradient(name):
    embeddings = torch.randn(4, DIM, requires_grad=True)
    value = build(name)(embeddings, torch.arange(4))
    value.backward()
    assert value.item() == 0 and (embeddings.grad == 0).all()


@pytest.mark.parametrize("name", PROXY + PAIR)
def test_descent_separates_the_classes(name):
    one_centre = {"centres": 1} if name == "softtriple" else {}  # two would let the two samples of a class stay apart
    rate = {"lr": 0.05} if name in PROXY else {}
    loss, (embeddings, labels) = build(name, **one_centre, **rate), batch(12, torch.float32)
    embeddings.requires_grad_()
    groups = [{"params": [embeddings], "lr": 0.05}, *loss.param_groups(0.05)]
    optimiser, first = torch.optim.Adam(groups), loss(embeddings, labels).item()
    for _ in range(100):
        optimiser.zero_grad()
        loss(embeddings, labels).backward()
        optimiser.step()
    unit = torch.nn.functional.normalize(embeddings.detach())
    same, other = positives_and_negatives(labels)
    cosines = unit @ unit.T
    assert loss(embeddings, labels).item() < first / 2
    assert cosines[same].mean() > cosines[other].mean() + 0.4


@pytest.mark.parametrize("name", PROXY + PAIR)
def test_autocast_computes_in_float32(name):
    loss, (embeddings, labels) = build(name), batch(12, torch.float32)
    rounded = embeddings.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(rounded, labels)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(rounded.float(), labels))


def compiled_and_plain_agree(name, backend):
    loss, (embeddings, labels) = build(name), batch(12, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    ours, theirs = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
    value, expected = compiled(ours, labels), loss(theirs, labels)
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", PROXY + PAIR)
def test_is_one_graph_to_the_compiler(name):
    compiled_and_plain_agree(name, "aot_eager")


@pytest.mark.long
@pytest.mark.compiler
@pytest.mark.parametrize("name", PROXY + PAIR)
def test_compiles(name):
    compiled_and_plain_agree(name, "inductor")


@pytest.mark.parametrize("name", PROXY)
def test_labels_out_of_range_are_named(name):
    embeddings, labels = batch()
    for bad in (labels + 1, labels - 1):
        with pytest.raises(OodmlError, match=r"labels must lie in 0\.\.5 \(num_classes=6\)"):
            build(name)(embeddings, bad)


@pytest.mark.parametrize("name", PROXY)
def test_what_a_proxy_loss_cannot_do_without_is_named(name):
    with pytest.raises(OodmlError, match=rf"{name.replace('+', '.')}.*num_classes="):
        make_loss(name, embedding_dim=DIM)
    with pytest.raises(OodmlError, match=rf"{name.replace('+', '.')}.*embedding_dim="):
        make_loss(name, num_classes=CLASSES)
    embeddings, labels = batch()
    with pytest.raises(OodmlError, match=r"embeddings have 4 dimensions.*embedding_dim=5"):
        build(name)(embeddings[:, :4], labels)
    with pytest.raises(OodmlError, match="takes no tuples"):
        build(name)(embeddings, labels, tuples=(labels, labels, labels))


@pytest.mark.parametrize("name", PROXY)
def test_proxies_come_from_the_given_generator_alone(name):
    state = torch.get_rng_state()
    first, second, other = build(name), build(name), build(name, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.proxies, second.proxies) and not torch.equal(first.proxies, other.proxies)


@pytest.mark.parametrize("name", PROXY)
def test_every_parameter_is_in_a_group_without_weight_decay(name):
    loss = build(name)
    groups = loss.param_groups(1e-5)
    assert {id(p) for g in groups for p in g["params"]} == {id(p) for p in loss.parameters()}
    assert all(g["weight_decay"] == 0 for g in groups) and loss_record(name).has_parameters


@pytest.mark.parametrize("name", PROXY)
def test_a_learning_rate_of_the_users_is_taken_as_it_is(name):
    default = loss_record(name).defaults["lr"]
    assert repr(default) == repr(float(default))  # tables and `oodml methods` show a number
    assert build(name).param_groups(0.1)[0]["lr"] == default  # the papers'
    for lr in (1e-6, float(default), 0.5):
        assert build(name, lr=lr).param_groups(0.1)[0]["lr"] == lr


@pytest.mark.parametrize("name", PROXY)
def test_an_optimiser_of_proxies_is_read_back_without_trust(name, tmp_path):
    """`torch.load` knows plain numbers only, unless it is told to run whatever the file says."""
    embeddings, labels = batch()
    loss = build(name)
    optimiser = torch.optim.Adam(loss.param_groups(1e-5))
    loss(embeddings, labels).backward()
    optimiser.step()
    torch.save(optimiser.state_dict(), tmp_path / "optimiser.pt")
    read = torch.load(tmp_path / "optimiser.pt", weights_only=True)
    assert read["param_groups"][0]["lr"] == loss_record(name).defaults["lr"]


@pytest.mark.parametrize("name", PROXY + PAIR)
def test_int32_labels_are_welcome(name):
    embeddings, labels = batch()
    loss = build(name).double()
    torch.testing.assert_close(loss(embeddings, labels.int()), loss(embeddings, labels))


@pytest.mark.parametrize("name", PROXY + PAIR)
def test_search_ranges_hold_the_defaults(name):
    record = loss_record(name)
    assert record.paper and record.search
    for option, (low, high) in record.search.items():
        assert low <= record.defaults[option] <= high, option
