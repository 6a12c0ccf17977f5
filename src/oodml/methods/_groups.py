"""Groups of images that share something beside their class (Roth et al. 2019, MIC; Sharing Matters, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

GROUPS = 50  # as on SOP; the papers take 30 on CUB and 150 on CARS


def standardised(features: Tensor, labels: Tensor) -> Tensor:
    """(f − μ_c) / σ_c by dimension, within each class c: what is left says little of the class; (n, D) -> (n, D).

    A dimension that does not vary within a class is 0 there.
    """
    count = int(labels.max()) + 1
    sizes = torch.bincount(labels, minlength=count).clamp_min(1)[:, None]
    zeros = features.new_zeros(count, features.shape[1])
    centred = features - (zeros.index_add(0, labels, features) / sizes)[labels]
    spread = (zeros.index_add(0, labels, centred.square()) / sizes).sqrt()
    return centred / spread.clamp_min(1e-6 * features.abs().amax().clamp_min(1e-12))[labels]


def classes_per_group(groups: Tensor, labels: Tensor) -> Tensor:
    """The average number of different classes in a group that has members (Sharing Matters, figure 4), a scalar."""
    pairs = torch.unique(torch.stack([groups, labels]), dim=1)
    return torch.tensor(pairs.shape[1] / len(pairs[0].unique()))
