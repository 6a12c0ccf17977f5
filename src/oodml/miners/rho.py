"""ρ-regularisation (Roth et al., Revisiting Training Strategies and Generalization Performance in DML, ICML 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.miners import build_miner, register_miner
from oodml.miners._base import Miner, PairMiner, PartnerMiner, Partners, Triplets
from oodml.miners._checks import require_finite
from oodml.miners._distances import positives_and_negatives, same_class
from oodml.miners._sampling import choose_at, choose_uniform_for, uniforms


@register_miner("rho", paper="Roth et al. 2020", search={"p_switch": (0.1, 0.5)})
class Rho(PartnerMiner):
    """Any triplet miner, with some triplets turned into a push within the class.

    With probability `p_switch` a triplet (a, p, n) becomes (a, a, p'), p' another sample of a's class drawn uniformly:
    the samples of a class are pushed apart and nothing is pulled together, as the authors' code does. (The literal
    reading (a, p, p') has no gradient with two samples a class.) It keeps directions that separate no training class.

    Where the base draws its positives uniformly, p' is the p that it drew. An anchor for which the base finds no
    triplet has none to switch.

    `base` is the name of a triplet miner, a dict with its options, or a miner. The papers' p_switch: .35 (CUB with
    β 1.2, CARS), .4 (CUB with β .6), .15 (SOP).
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
        if self.base.uniform_positives:  # then the positive that a switched triplet gives up is the mate it wants
            drawn = uniforms(len(mask), labels.device, self.generator)
            mate, has_mate = positive, mask
        else:
            drawn, points = uniforms(2 * len(mask), labels.device, self.generator).view(2, -1)
            mate, has_mate = choose_at(same_class(labels, len(distances)).fill_diagonal_(False), points)
        return self._switched(drawn, Triplets(anchor, positive, negative, mask), mate, has_mate)

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets:
        if self.one_an_anchor:
            return super().mine(embeddings, labels, distances)
        mined = self.base(embeddings, labels, distances, len(distances))
        if not isinstance(mined, Triplets):
            raise OodmlError(f"rho needs a base miner of triplets; {type(self.base).__name__} mines pairs.")
        mates, _ = positives_and_negatives(labels, len(distances))
        drawn = uniforms(len(mined.anchor), labels.device, self.generator)
        mate = choose_uniform_for(mined.anchor, mates, self.generator)
        (positive, negative), mask = self._switched(drawn, mined, mate, mates.any(1)[mined.anchor])
        return Triplets(mined.anchor, positive, negative, mask)

    def _switched(self, drawn: Tensor, mined: Triplets, mate: Tensor, has_mate: Tensor) -> Partners:
        """(a, p, n) turned into (a, a, mate) where the uniform number drawn says so; all (t,)."""
        switch = drawn < self.p_switch
        columns = torch.stack([mined.anchor, mate, mined.positive, mined.negative]).view(2, 2, -1)
        mask = mined.mask if has_mate is mined.mask else mined.mask & (has_mate | ~switch)
        return Partners(torch.where(switch, columns[0], columns[1]), mask)
