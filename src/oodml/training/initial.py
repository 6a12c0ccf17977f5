"""Where a run starts from."""

from __future__ import annotations

from oodml.config import RunConfig
from oodml.models import Backbone, make_backbone
from oodml.training.seeds import child_seed


def initial_backbone(config: RunConfig, trained_elsewhere: bool = False) -> Backbone:
    """The backbone a run starts from; `trained_elsewhere` spares looking for weights that will be replaced."""
    pretrained, weights = (False, None) if trained_elsewhere else (config.pretrained, config.weights)
    return make_backbone(config.backbone or "tiny", pretrained, weights, seed=child_seed(config.seed, "backbone"))
