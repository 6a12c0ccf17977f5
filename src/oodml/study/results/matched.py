"""Recall with every split's test set reduced to the same size, from the embeddings that runs keep.

Building splits by removal shrinks the gallery and hides the shift; at one size the splits can be compared.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from oodml.data import Dataset
from oodml.evaluation import MATCHED, evaluate
from oodml.shift import Split

METRIC = MATCHED  # what studies rank by


def smallest_test_set(splits: list[Split], dataset: Dataset) -> tuple[int, int]:
    """(classes, images a class) that every split's test set can be reduced to; a class without a picture that can be
    read is in none."""
    sizes = np.bincount(dataset.labels, minlength=len(dataset.classes))
    size_of = {name: size for name, size in zip(dataset.classes, sizes.tolist(), strict=True) if size}
    tests = [[size_of[name] for name in split.test if name in size_of] for split in splits]
    return min(map(len, tests)), max(2, min((min(each) for each in tests if each), default=0))


def matched_recall(run: Path, match: tuple[int, int]) -> dict[str, float]:
    """`recall@1:matched` of a run, from its stored test embeddings."""
    stored = load_file(run / "embeddings.safetensors")
    scores = evaluate(stored["embeddings"].astype(np.float32), stored["labels"], metrics=[METRIC], match=match)
    return {METRIC: scores[METRIC]}
