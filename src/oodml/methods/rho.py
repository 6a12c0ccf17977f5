"""ρ-regularisation: now and then push apart two samples of one class, so that the embedding keeps its directions."""

from __future__ import annotations

from oodml._errors import OodmlError
from oodml.methods import register_method
from oodml.methods._base import Context
from oodml.methods._objective import RHO_BASES, Spec, as_dict, expand
from oodml.methods.plain import Plain


@register_method("rho", paper="Roth et al. 2020, Revisiting Training Strategies and Generalization Performance in DML")
class Rho(Plain):
    """R-contrastive, R-margin, R-triplet, R-SNR: with probability p_switch a triplet pushes within its class.

    `base` is one of those four losses (a name or a dict of its options); `p_switch` defaults to the papers' value
    for the base and the data set (CUB .4, CARS .35, SOP .15 for R-margin; .3 elsewhere). R-margin starts at β = .6.
    """

    def __init__(
        self,
        base: Spec = "margin",
        p_switch: float | None = None,
        dropout: float = 0.0,
        input_noise: float = 0.0,
        output_noise: float = 0.0,
    ) -> None:
        if p_switch is not None and not 0 <= p_switch <= 1:
            raise OodmlError(f"p_switch is a probability in [0, 1], got {p_switch}.")
        spec = {"name": "rho", "base": as_dict(base, "base"), "p_switch": p_switch}
        super().__init__(spec, dropout=dropout, input_noise=input_noise, output_noise=output_noise)

    def setup(self, context: Context) -> None:
        self.spec = expand(self.spec, context.dataset)  # now the data set, and with it p_switch, is known
        super().setup(context)


__all__ = ["RHO_BASES", "Rho"]
