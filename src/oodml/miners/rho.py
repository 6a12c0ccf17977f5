"""ρ-regularisation (Roth et al., Revisiting Training Strategies and Generalization Performance in DML, ICML 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml._checks import require_finite
from oodml._errors import OodmlError
from oodml._sampling import choose_at, choose_uniform_for, uniforms
from oodml._tensors import positives_and_negatives, same_class
from oodml.miners import build_miner, register_miner
from oodml.miners.base import Miner, PairMiner, PartnerMiner, Partners, Triplets


@register_miner("rho", paper="Roth et al. 2020", search={"p_switch": (0.1, 0.5)})
class Rho(PartnerMiner):
    """Any triplet miner, with some triplets turned into a push within the class.

    With probability `p_switch` a triplet (a, p, n) becomes (a, a, p'), p' another sample of a's class drawn uniformly:
    the samples of a class are pushed apart and nothing is pulled together, as the authors' code does. (The literal
    reading (a, p, p') has no gradient with two samples per class.) This keeps directions of the embedding that do not
    separate training classes.

    If the base draws its positives uniformly, p' is the p that it drew. Where the base finds no triplet, nothing is
    switched.

    `base` is the name of a triplet miner, a dict with its options, or a miner. The papers' p_switch: 0.35 (CUB with
    β 1.2, CARS), 0.4 (CUB with β 0.6), 0.15 (SOP).
    """

    def __init__(
        self,
        base: str | dict[str, Any] | Miner = "distance",
        p_switch: float = 0.35,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(generator)
        require_finite(p_switch=p_switch)
        if not 0 <= p_switch <= 1:
            raise OodmlError(f"p_switch is a probability; expected 0 <= p_switch <= 1, got {p_switch}.")
        self.base = base = build_miner(base, generator, "base")
        if isinstance(base, PairMiner):
            raise OodmlError(f"rho needs a base miner of triplets; {type(base).__name__} mines pairs.")
        self.p_switch = p_switch
        self.one_an_anchor = isinstance(base, PartnerMiner) and base.one_an_anchor

    def partners(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Partners:
        assert isinstance(self.base, PartnerMiner)
        (positive, negative), mask = self.base.partners(embeddings, labels, distances)
        anchor = torch.arange(len(mask), device=labels.device)
        if self.base.uniform_positives:  # the positive that the base drew is already a uniform sample of the class
            drawn = uniforms(len(mask), labels.device, self.generator)
            other, has_other = positive, mask
        else:
            drawn, points = uniforms(2 * len(mask), labels.device, self.generator).view(2, -1)
            other, has_other = choose_at(same_class(labels, len(distances)).fill_diagonal_(False), points)
        return self._switched(drawn, Triplets(anchor, positive, negative, mask), other, has_other)

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets:
        if self.one_an_anchor:
            return super().mine(embeddings, labels, distances)
        mined = self.base(embeddings, labels, distances, len(distances))
        if not isinstance(mined, Triplets):
            raise OodmlError(f"rho needs a base miner of triplets; {type(self.base).__name__} mines pairs.")
        positives, _ = positives_and_negatives(labels, len(distances))
        drawn = uniforms(len(mined.anchor), labels.device, self.generator)
        other = choose_uniform_for(mined.anchor, positives, self.generator)
        (positive, negative), mask = self._switched(drawn, mined, other, positives.any(1)[mined.anchor])
        return Triplets(mined.anchor, positive, negative, mask)

    def _switched(self, drawn: Tensor, mined: Triplets, other: Tensor, has_other: Tensor) -> Partners:
        """(a, p, n) replaced by (a, a, other) where the uniform number is below p_switch; all (t,)."""
        switch = drawn < self.p_switch
        positive = torch.where(switch, mined.anchor, mined.positive)
        negative = torch.where(switch, other, mined.negative)
        return Partners(torch.stack([positive, negative]), mined.mask & (has_other | ~switch))
