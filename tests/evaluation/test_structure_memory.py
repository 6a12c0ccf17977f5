"""No measure holds anything that grows with N², K·N or K²: the largest tensor of a call is recorded."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oodml.evaluation import fnmr_at_fmr, structure
from oodml.evaluation.clustering import clustering_scores


class LargestTensor(TorchDispatchMode):
    """Remembers the largest number of elements any operation gave back (views of expanded tensors not counted)."""

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
