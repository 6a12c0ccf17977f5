"""What can be known to be wrong before any data is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oodml._errors import OodmlError, unknown_name

LOGGERS = ("tensorboard", "wandb", "mlflow")


def check_loggers(names: str | tuple[str, ...] | None) -> None:
    for name in [names] if isinstance(names, str) else names or ():
        if name not in LOGGERS:
            raise unknown_name("logger", name, LOGGERS)


def check_depth(train: str, grad_cache: int | None) -> None:
    """Raise for a setting that has no effect at this depth of training."""
    if train == "head" and grad_cache is not None:
        raise OodmlError("grad_cache saves memory of the backbone's pass, and train='head' has none: leave it out.")


def check_views(crop_scale: tuple[float, float] | None) -> None:
    """Raise unless these are two shares of an image."""
    from oodml.data import Transforms

    if crop_scale is not None:
        Transforms(crop_scale=crop_scale)


def check_batches(batch_size: int, samples_per_class: int, sampler: str | Mapping[str, Any]) -> None:
    """Raise where a sampler cannot fill a batch or processes cannot share it."""
    import os

    import numpy as np

    from oodml.data import list_batch_samplers, make_batch_sampler

    options = {"name": sampler} if isinstance(sampler, str) else dict(sampler)
    name = options.pop("name", None)
    if name not in list_batch_samplers():
        raise unknown_name("batch sampler", name, list_batch_samplers())
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if batch_size % processes:
        raise OodmlError(
            f"{processes} processes cannot share a batch of {batch_size} equally: use a multiple of {processes}."
        )
    # A sampler checks its options in its constructor, a plug-in too. So one is built, on made-up labels of as many
    # classes as a batch can hold; it takes a fifth of a millisecond, and its rules are not repeated here.
    labels = np.repeat(np.arange(batch_size), samples_per_class)
    make_batch_sampler(name, labels, batch_size=batch_size, samples_per_class=samples_per_class, **options)


def check_backbone(name: str) -> None:
    """Raise for a name, or a tag of timm's weights, that neither this package nor timm knows."""
    from oodml.models import list_backbones

    if name not in list_backbones():
        from oodml.models.backbones.timm_models import check_timm_name

        check_timm_name(name, list_backbones())


SCHEDULES = ("constant", "cosine", "step")


def check_schedule(spec: str | Mapping[str, Any]) -> dict[str, Any]:
    """The schedule as a dict, or an error that names the valid forms."""
    options = {"name": spec} if isinstance(spec, str) else dict(spec)
    if options.get("name") not in SCHEDULES:
        raise unknown_name("schedule", options.get("name"), SCHEDULES)
    known = {"step": {"name", "epochs", "factor"}, "cosine": {"name", "rise"}}.get(options["name"], {"name"})
    rise = options.get("rise", 0)
    is_wrong = options.keys() - known or not isinstance(rise, int | float) or not 0 <= rise < float("inf")
    if is_wrong or (
        options["name"] == "step" and not _are_milestones(options.get("epochs"), options.get("factor", 1.0))
    ):
        raise OodmlError(
            'The schedule "step" needs its epochs, e.g. {"name": "step", "epochs": [40, 60], "factor": 0.3}; '
            '"cosine" takes "rise", the epochs over which the rate of the backbone rises from 0; "constant" takes no '
            f"options. Got {spec!r}."
        )
    return options


def _are_milestones(epochs: Any, factor: Any) -> bool:
    if not isinstance(epochs, list | tuple) or not epochs:
        return False
    return all(isinstance(each, int | float) for each in (*epochs, factor)) and factor > 0
