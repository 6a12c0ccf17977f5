"""Miners written elsewhere: functions, pytorch-metric-learning's, subclasses; their tuples are checked."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning import miners as peers

import oodml
from oodml import OodmlError
from oodml.miners import Miner, Pairs, Triplets, make_miner
from oodml.miners.distance import DistanceWeighted
from oodml.miners.foreign import as_miner

PLAIN = tuple(torch.tensor(i) for i in ([0, 1], [1, 0], [2, 4]))


def batch():
    return torch.randn(10, 6, generator=torch.Generator().manual_seed(0)), torch.arange(10) // 2


def test_distances_it_is_given_stay_in_float32():
    x, y = batch()
    given = []
    miner = as_miner(lambda embeddings, labels, distances: (given.append(distances), PLAIN)[1])
    miner(x.bfloat16(), y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        miner(x, y)
    assert [each.dtype for each in given] == [torch.float32] * 2


@pytest.mark.parametrize(
    "found",
    [PLAIN, list(PLAIN), (*PLAIN, torch.tensor([True, True])), Triplets(*PLAIN, torch.tensor([True, True]))],
    ids=["tuple", "list", "with a mask", "Triplets"],
)
def test_a_function_of_embeddings_and_labels_is_a_miner(found):
    x, y = batch()
    expected = oodml.make_loss("triplet")(x, y, PLAIN)
    torch.testing.assert_close(oodml.make_loss("triplet", miner=lambda e, labels: found)(x, y), expected)
    torch.testing.assert_close(
        oodml.make_loss("triplet", miner={"name": "rho", "base": lambda e, labels: found, "p_switch": 0.0})(x, y),
        expected,
    )


def test_with_a_memory_only_tuples_of_the_batch_count():
    x, y = batch()
    late = tuple(torch.cat([i, torch.tensor([j])]) for i, j in zip(PLAIN, (15, 14, 0), strict=True))
    options = {"embedding_dim": 6, "memory_size": 10, "miner": lambda e, labels: late if len(e) > 10 else PLAIN}
    memory = oodml.make_loss("crossbatch", base="triplet", **options)
    first, second = memory(x, y), memory(x, y)
    torch.testing.assert_close(second, first)  # the anchor 15 is remembered, not of the batch


def test_one_that_asks_for_distances_is_given_them():
    x, y = batch()
    seen = []

    def mine(embeddings, labels, distances):
        seen.append(distances)
        return PLAIN

    oodml.make_loss("triplet", miner=mine)(x, y)
    oodml.make_loss("genlifted", miner=mine)(100 * x, y)  # raw embeddings: it has none at hand on the sphere
    unit = torch.nn.functional.normalize(x)
    for distances in seen:
        torch.testing.assert_close(distances, torch.cdist(unit, unit).clamp_min(1e-4), atol=1e-3, rtol=0)


@pytest.mark.parametrize("peer", [peers.TripletMarginMiner, peers.BatchHardMiner, peers.DistanceWeightedMiner])
def test_triplets_of_the_peer(peer):
    x, y = batch()
    torch.manual_seed(0)
    a, p, n = peer()(x, y)
    torch.manual_seed(0)
    found = oodml.make_loss("triplet", miner=peer())(x, y)
    torch.testing.assert_close(found, oodml.make_loss("triplet")(x, y, (a, p, n)))


def test_pairs_of_the_peer():
    x, y = batch()
    a1, p, a2, n = peers.MultiSimilarityMiner()(x, y)
    mined = as_miner(peers.MultiSimilarityMiner())(x, y)
    assert isinstance(mined, Pairs) and mined.positive_mask.all() and mined.negative_mask.all()
    assert all(torch.equal(i, j) for i, j in zip(mined, (a1, p, a2, n), strict=False))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "got NoneType"),
        (PLAIN[:2], "got 2 of"),
        (tuple(i.numpy() for i in PLAIN), "ndarray"),
        (tuple(i.float() for i in PLAIN), "int64"),
        ((PLAIN[0], PLAIN[1], PLAIN[2] + 9), r"must index the batch, 0\.\.9; got values from 0 to 13"),
        (Triplets(*PLAIN, torch.tensor([True])), "as long as the indices"),
    ],
)
def test_what_is_no_tuple_is_refused_and_the_miner_named(found, told):
    def own_miner(embeddings, labels):
        return found

    x, y = batch()
    for miner in (own_miner, {"name": "rho", "base": own_miner}):
        with pytest.raises(OodmlError, match=f"(?s)tuples of the miner 'own_miner'.*{told}"):
            oodml.make_loss("triplet", miner=miner)(x, y)


def test_a_subclass_is_checked_too():
    class Beyond(Miner):
        def mine(self, embeddings, labels, distances):
            i = torch.tensor([0])
            return Triplets(i, i + 1, i + 20, i == 0)

    x, y = batch()
    with pytest.raises(OodmlError, match="miner 'Beyond' must index the batch"):
        oodml.make_loss("triplet", miner=Beyond())(x, y)
    with pytest.raises(OodmlError, match="miner 'Beyond'"):
        oodml.losses.triplet.Triplet(miner=Beyond())(x, y)


def test_a_class_or_a_number_is_no_miner():
    with pytest.raises(OodmlError, match=r"miner must be a miner, not its class: give DistanceWeighted\(\)"):
        oodml.make_loss("triplet", miner=DistanceWeighted)
    with pytest.raises(OodmlError, match="base must be a name, a dict with a 'name' or a miner, got 3"):
        make_miner("rho", base=3)


def test_miners_of_the_package_stay_as_they_are():
    own = make_miner("hard")
    assert oodml.make_loss("triplet", miner=own).miner is own


def test_pairs_where_triplets_are_needed_are_refused_at_once():
    for name in ("triplet", "snr", "quadruplet"):
        with pytest.raises(OodmlError, match="needs triplets"):
            oodml.make_loss(name, miner="lifted")
    with pytest.raises(OodmlError, match="rho needs a base miner of triplets"):
        make_miner("rho", base="npair")
