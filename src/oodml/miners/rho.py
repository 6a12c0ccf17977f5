"""ρ-regularisation (Roth et al., Revisiting Training Strategies and Generalization Performance in DML, ICML 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml._errors import OodmlError
from oodml.miners import make_miner, register_miner
from oodml.miners._base import Miner, TripletMiner, Triplets, mine_rows
from oodml.miners._distances import positives_and_negatives
from oodml.miners._sampling import choose_uniform_for, uniforms


@register_miner("rho", paper="Roth et al. 2020", search={"p_switch": (0.1, 0.5)})
class Rho(TripletMiner):
    """Any triplet miner, with some triplets turned into a push within the class.

    With probability `p_switch` a triplet (a, p, n) becomes (a, a, p'), p' another sample of a's class drawn uniformly:
    the samples of a class are pushed apart and nothing is pulled together, as the authors' code does. (The literal
    reading (a, p, p') has no gradient with two samples a class.) It keeps directions that separate no training class.

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
        if not 0 <= p_switch <= 1:
            raise OodmlError(f"p_switch is a probability; expected 0 <= p_switch <= 1, got {p_switch}.")
        if isinstance(base, str | dict):
            options = {"name": base} if isinstance(base, str) else dict(base)
            base = make_miner(options.pop("name"), generator=generator, **options)
        self.base, self.p_switch = base, p_switch

    def mine(self, embeddings: Tensor, labels: Tensor, distances: Tensor) -> Triplets:
        mined = mine_rows(self.base, embeddings, labels, distances, len(distances))
        if not isinstance(mined, Triplets):
            raise OodmlError(f"rho needs a base miner of triplets; {type(self.base).__name__} mines pairs.")
        mates, _ = positives_and_negatives(labels, len(distances))
        anchor = mined.anchor
        switch = uniforms(len(anchor), labels.device, self.generator) < self.p_switch
        return Triplets(
            anchor,
            torch.where(switch, anchor, mined.positive),
            torch.where(switch, choose_uniform_for(anchor, mates, self.generator), mined.negative),
            torch.where(switch, mates.any(1)[anchor], mined.mask),
        )
