"""ImageNet features tell birds apart: the offline weights, the input convention and the transform fit together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import oodml

CUB = Path(__file__).parents[3] / "shared" / "data" / "cub200.tar"


@pytest.mark.real
def test_lite0_finds_birds_of_the_same_species(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not CUB.exists():
        pytest.skip(f"no CUB-200-2011 at {CUB}")
    monkeypatch.setenv("OODML_CACHE", str(tmp_path))
    ds = oodml.load_dataset("cub200", root=CUB)
    ds = ds.subset(ds.indices_of(ds.default_split.test[::5])).sample(10)  # 20 species, 10 images each
    features = oodml.extract_features(ds, quiet=True)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    similarity = features @ features.T
    np.fill_diagonal(similarity, -2)
    recall = float(np.mean(ds.labels[similarity.argmax(1)] == ds.labels))
    # 1/20 by chance; the whole test half gives .55 with 59 images a class among 100 species
    assert recall > 0.6, recall
