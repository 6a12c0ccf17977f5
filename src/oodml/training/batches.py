"""The batches of a run: its sampler, and a size that makes sense for its images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oodml._errors import OodmlError
from oodml.config import RunConfig
from oodml.data import BatchSampler, make_batch_sampler
from oodml.methods import Method
from oodml.training.seeds import child_seed
from oodml.training.sets import Sets

LARGE_BATCH = 1000  # smaller ones may repeat the images of a small set as they like


def make_sampler(config: RunConfig, sets: Sets) -> BatchSampler:
    """Every process draws the whole batch and takes its share of it, so a run does not depend on their number."""
    _check_batch(int(config.batch_size or 0), len(sets.fit))
    spec = {"name": config.sampler} if isinstance(config.sampler, str) else dict(config.sampler or {"name": "spc"})
    return make_batch_sampler(
        spec.pop("name"),
        sets.fit_labels,
        batch_size=int(config.batch_size or 0),
        samples_per_class=int(config.samples_per_class or 0),
        seed=child_seed(config.seed, "data order"),
        **spec,
    )


def batches_of_turns(config: RunConfig, sampler: BatchSampler, method: Method, step: int) -> list[Iterator[np.ndarray]]:
    """Where the batch of each turn of a step comes from, from `step` on, without an end.

    Turns composed by classes take the run's `sampler` in turn, and every pass of it is a pass for one of them.
    """
    labels = [method.batch_labels(turn) for turn in range(method.batches_per_step)]
    by_class = _endless(sampler)
    sampler.set_epoch(step * sum(each is None for each in labels) // len(sampler))  # resumed inside it, it stays there
    return [
        by_class if each is None else _endless(_composed(config, each.cpu().numpy(), turn, step))
        for turn, each in enumerate(labels)
    ]


def _composed(config: RunConfig, labels: np.ndarray, turn: int, step: int) -> BatchSampler:
    """A sampler by labels that a method gave, at the place of a step, of which it serves one batch.

    At least two images of a label, whatever the run's number a class, so that every image has a mate.
    """
    sampler = make_batch_sampler(
        "spc",
        labels,
        batch_size=int(config.batch_size or 0),
        samples_per_class=max(2, int(config.samples_per_class or 0)),
        seed=child_seed(config.seed, "data order", turn),
    )
    epoch, position = divmod(step, len(sampler))
    sampler.load_state_dict({**sampler.state_dict(), "epoch": epoch, "position": position})
    return sampler


def _endless(sampler: BatchSampler) -> Iterator[np.ndarray]:
    """Pass after pass, from where the sampler is."""
    while True:
        yield from sampler


def _check_batch(batch_size: int, images: int) -> None:
    """Refuse a large batch that holds every image several times: a slip of the keyboard that would fill the memory."""
    if batch_size > max(LARGE_BATCH, 2 * images):
        raise OodmlError(
            f"batch_size={batch_size:,} would hold each of the {images:,} training images {batch_size // images:,} "
            f"times: use at most {max(LARGE_BATCH, 2 * images):,}."
        )
