"""ρ-regularisation: with some probability push apart two samples of one class, so that embeddings stay spread out."""

from __future__ import annotations

from oodml._errors import OodmlError
from oodml.methods.objective import P_SWITCH, Spec, as_dict
from oodml.methods.plain import Plain
from oodml.methods.registry import register_method


@register_method(
    "rho",
    paper="Roth et al. 2020, Revisiting Training Strategies and Generalization Performance in DML",
    revision=2,
)
class Rho(Plain):
    """R-contrastive, R-margin, R-triplet, R-SNR: with probability p_switch a triplet pushes within its class.

    `base` is one of those four losses (a name or a dict of its options). R-margin starts at β = 0.6. The papers choose
    `p_switch` by dataset, base and backbone (R-margin: 0.4 on CUB, 0.35 on CARS, 0.15 on SOP); `protocol=` sets it.
    """

    def __init__(
        self,
        base: Spec = "margin",
        p_switch: float = P_SWITCH,
        dropout: float = 0.0,
        input_noise: float = 0.0,
        output_noise: float = 0.0,
    ) -> None:
        if not 0 <= p_switch <= 1:
            raise OodmlError(f"p_switch is a probability in [0, 1], got {p_switch}.")
        spec = {"name": "rho", "base": as_dict(base, "base"), "p_switch": p_switch}
        super().__init__(spec, dropout=dropout, input_noise=input_noise, output_noise=output_noise)
