"""Where a run starts from."""

from __future__ import annotations

from torch import nn

from oodml._errors import OodmlError
from oodml.config import RunConfig
from oodml.models import Backbone, make_backbone
from oodml.training.seeds import child_seed


def initial_backbone(config: RunConfig, trained_elsewhere: bool = False) -> Backbone:
    """The backbone a run starts from; `trained_elsewhere` spares looking for weights that will be replaced."""
    pretrained, weights = (False, None) if trained_elsewhere else (config.pretrained, config.weights)
    return make_backbone(config.backbone or "tiny", pretrained, weights, seed=child_seed(config.seed, "backbone"))


def starting_backbone(config: RunConfig) -> Backbone:
    """`initial_backbone`, able to do what the run asks of it; found out without data, so before any is read."""
    backbone = initial_backbone(config)
    normalised = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in backbone.modules())
    if config.grad_cache and normalised and not freezes_batchnorm(config, backbone):
        raise OodmlError(
            "grad_cache works in chunks, which trained batch-norm would notice: use frozen_bn=True with it."
        )
    return backbone


def freezes_batchnorm(config: RunConfig, backbone: Backbone) -> bool:
    """Whether batch-norm stands still: as the settings say, else where its statistics were trained before."""
    return backbone.pretrained if config.frozen_bn is None else config.frozen_bn
