"""Structure measures against float64 oracles written from the formulas, pair by pair."""

from __future__ import annotations

import importlib
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oodml import OodmlError
from oodml.evaluation import fnmr_at_fmr
from oodml.evaluation import spectrum as spectrum_module
from oodml.evaluation.clustering import clustering_scores
from oodml.evaluation.spectrum import class_spectra, spectral_decay, spectrum
from oodml.evaluation.structure import structure

module = importlib.import_module("oodml.evaluation.structure")  # the package exports a function of the same name


def unit(x):
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)


def oracle(x, labels, metric="euclidean"):
    """Every measure from its definition, with loops over classes and pairs."""
    x, labels = np.asarray(x, dtype=np.float64), np.asarray(labels)
    far = (
        (lambda a, b: np.linalg.norm(a - b))
        if metric == "euclidean"
        else (lambda a, b: 1 - unit(a[None]) @ unit(b[None]).T)
    )
    groups = [x[labels == c] for c in np.unique(labels)]
    inside = [np.mean([far(a, b) for a, b in itertools.combinations(g, 2)]) for g in groups if len(g) > 1]
    means = [(unit(g) if metric == "cosine" else g).mean(axis=0) for g in groups]
    between = [far(a, b) for a, b in itertools.combinations(means, 2)]
    u = unit(x)
    squared = {(i, j): ((u[i] - u[j]) ** 2).sum() for i, j in itertools.combinations(range(len(u)), 2)}
    return {
        "pi_intra": float(np.mean(inside)),
        "pi_inter": float(np.mean(between)),
        "pi_ratio": float(np.mean(inside) / np.mean(between)),
        "rho": decay(np.linalg.svd(x, compute_uv=False)),
        "uniformity": math.log(np.mean([math.exp(-2 * d) for d in squared.values()])),
        "alignment": float(np.mean([d for (i, j), d in squared.items() if labels[i] == labels[j]])),
    }


def decay(s, direction="uniform"):
    s = np.maximum(s, 1.2e-7 * s[0])
    p, n = s / s.sum(), len(s)
    if direction == "uniform":
        return float(sum(1 / n * math.log(1 / n / q) for q in p))
    return float(sum(q * math.log(q * n) for q in p))


def points(n, d, seed, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=7).filter(lambda sizes: max(sizes) > 1),
    st.integers(2, 9),
    st.integers(0, 10**6),
    st.sampled_from(["euclidean", "cosine"]),
)
def test_measures_match_their_definitions(sizes, dim, seed, metric):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 7 - 3, sizes))
    x = points(len(labels), dim, seed) + 0.5
    expected = oracle(x, labels, metric)
    found = structure(x, labels, metric=metric)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=2e-4, abs=1e-5), name
    assert found.notes.get("singletons", 0) == sizes.count(1)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_small_blocks_give_the_same_numbers(monkeypatch, metric):
    x, labels = points(150, 6, 1), torch.randint(0, 12, (150,), generator=torch.Generator().manual_seed(1))
    labels[:60] = 0  # one class far larger than the rest
    whole = structure(x, labels, metric=metric, per_class=True)
    monkeypatch.setattr(module, "_CELLS", 100)
    monkeypatch.setattr(spectrum_module, "_VALUES", 64)
    blocked = structure(x, labels, metric=metric, per_class=True)
    for name in whole:
        assert blocked[name] == pytest.approx(whole[name], rel=1e-6), name


def test_duplicates_have_no_distance():
    x = points(6, 5, 0).repeat_interleave(4, dim=0) * 100 + 1000
    scores = structure(x, torch.arange(6).repeat_interleave(4), metrics=["pi_intra", "alignment"])
    assert scores["pi_intra"] == 0.0
    assert scores["alignment"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_coinciding_centres_have_an_infinite_ratio(metric):
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(3, 1)
    assert structure(x, [0, 0, 1, 1, 2, 2], metric=metric)["pi_ratio"] == math.inf
    with pytest.warns(UserWarning, match="coincide"):
        assert math.isnan(structure(torch.ones(4, 1), [0, 0, 1, 1], metric=metric)["pi_ratio"])


def test_arrays_strings_and_tensors_agree():
    x, names = points(20, 4, 2), ["cat", "dog", "emu", "fox"] * 5
    by_name = structure(x.numpy(), np.array(names))
    by_number = structure(x, torch.tensor([sorted(set(names)).index(n) for n in names]))
    assert by_name == by_number
    assert all(type(v) is float for v in by_name.values())


def test_normalise_puts_embeddings_on_the_sphere_first():
    x, labels = points(40, 5, 3) * torch.arange(1, 41)[:, None], torch.arange(40) % 4
    assert structure(x, labels, normalise=True) == structure(torch.nn.functional.normalize(x, dim=1), labels)


@pytest.mark.parametrize("shape", [(40, 7), (7, 40), (12, 12)])
@pytest.mark.parametrize("centre", [False, True])
def test_spectrum_matches_a_decomposition_in_float64(shape, centre):
    x = points(*shape, 4) + 1
    a = x.double().numpy()
    expected = np.linalg.svd(a - a.mean(axis=0) if centre else a, compute_uv=False)
    found = spectrum(x, centre=centre).numpy()
    assert np.allclose(found, expected[: len(found)], rtol=1e-5, atol=1e-4)
    assert len(found) == (min(shape[0] - 1, shape[1]) if centre and shape[0] <= shape[1] else min(shape))


@pytest.mark.parametrize("direction", ["uniform", "spectrum"])
@pytest.mark.parametrize("drop", [0, 1, 3])
def test_decay_drops_leading_values_in_both_directions(direction, drop):
    x = points(50, 8, 5)
    expected = decay(np.linalg.svd(x.double().numpy(), compute_uv=False)[drop:], direction)
    found = structure(x, [0] * 25 + [1] * 25, metrics="rho", drop=drop, direction=direction)
    assert found == {"rho": pytest.approx(expected, rel=1e-6)}


def test_flat_spectrum_scores_zero_and_low_rank_stays_finite():
    assert float(spectral_decay(spectrum(torch.eye(6)))) == pytest.approx(0, abs=1e-12)
    flat = points(60, 2, 6) @ points(2, 10, 7)
    assert 5 < float(spectral_decay(spectrum(flat))) < 17
    assert math.isfinite(float(spectral_decay(spectrum(torch.zeros(5, 3)))))
    assert float(spectral_decay(spectrum(torch.zeros(5, 3)))) > 5


@pytest.mark.parametrize("centre", [False, True])
def test_class_spectra_match_one_decomposition_a_class(centre):
    labels = torch.tensor([0] * 9 + [1] * 2 + [2] * 5 + [3])[
        torch.randperm(17, generator=torch.Generator().manual_seed(0))
    ]
    x = points(17, 6, 8)
    values, count = class_spectra(x, labels, centre)
    rhos = []
    for c in range(4):
        rows = x[labels == c].double().numpy()
        rows = rows - rows.mean(axis=0) if centre else rows
        expected = np.zeros(6)
        s = np.linalg.svd(rows, compute_uv=False)[: min(len(rows) - centre, 6)]
        expected[: len(s)] = s
        assert int(count[c]) == len(s)
        assert np.allclose(values[c].numpy(), expected, atol=1e-6)
        rhos += [decay(s)] if len(s) > 1 else []
    found = structure(x, labels, metrics="rho", centre=centre, per_class=True)["rho_class"]
    assert found == pytest.approx(np.mean(rhos), rel=1e-5)


@pytest.mark.parametrize(
    ("labels", "undefined"),
    [
        ([0, 1, 2], {"pi_intra", "pi_ratio", "alignment"}),
        ([0, 0, 0], {"pi_inter", "pi_ratio"}),
        ([0], {"pi_intra", "pi_inter", "pi_ratio", "uniformity", "alignment"}),
    ],
    ids=["singletons", "one class", "one image"],
)
def test_what_a_set_cannot_define_is_nan_with_a_warning(labels, undefined):
    with pytest.warns(UserWarning, match="undefined"):
        scores = structure(points(len(labels), 3, 9), labels)
    assert {name for name, value in scores.items() if math.isnan(value)} == undefined == set(scores.notes["undefined"])


def test_wrong_calls_say_what_is_expected():
    x, labels = points(6, 3, 0), [0, 0, 0, 1, 1, 1]
    with pytest.raises(OodmlError, match="pi_intra"):
        structure(x, labels, metrics="pi_intre")
    with pytest.raises(OodmlError, match="cosine"):
        structure(x, labels, metric="cosin")
    with pytest.raises(OodmlError, match="drop fewer"):
        structure(x, labels, drop=3)
    with pytest.raises(OodmlError, match="rows 1"):
        structure([[0.0, 1.0], [math.nan, 0.0]], [0, 1])
    with pytest.raises(OodmlError, match="one label"):
        structure(x, labels[:-1])


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements that an operation returned (without views of expanded tensors)."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.elements = max(self.elements, leaf.untyped_storage().nbytes() // leaf.element_size())
        return result


N, CLASSES = 5000, 3000
TILE = 2048 * 2048
CALLS = {
    "clustering": lambda x, y: clustering_scores(x, y, ["nmi", "ami", "f1", "purity"]),
    "structure": lambda x, y: structure(x, y, metrics=["pi_ratio", "rho", "uniformity", "alignment"], per_class=True),
    "thresholds": lambda x, y: fnmr_at_fmr(x, y),
}


@pytest.mark.parametrize("call", CALLS)
def test_memory_is_bounded_by_a_tile(call):
    x = torch.randn(N, 16, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(N) % CLASSES
    with LargestTensor() as largest:
        CALLS[call](x, labels)
    assert largest.elements <= TILE < CLASSES * CLASSES / 2
    assert largest.elements > 1000  # the recorder sees the work


def test_the_examples_of_the_page_of_metrics_run_in_order():
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 3
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert 0 <= names["scores"]["nmi"] <= 1
    assert set(names["shape"]) == {"pi_intra", "pi_inter", "pi_ratio", "rho", "uniformity", "alignment"}
    assert names["deep"] > 0
    assert next(iter(names["rates"])) == "fnmr@fmr=1e-1"
    assert names["drift"]["other_fmr"] > names["drift"]["fmr"]
