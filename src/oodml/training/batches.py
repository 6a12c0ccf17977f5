"""The batches of a run: its sampler, and a size that makes sense for its images."""

from __future__ import annotations

from oodml._errors import OodmlError
from oodml.config import RunConfig
from oodml.data import BatchSampler, make_batch_sampler
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


def _check_batch(batch_size: int, images: int) -> None:
    """Refuse a large batch that holds every image several times: a slip of the keyboard that would fill the memory."""
    if batch_size > max(LARGE_BATCH, 2 * images):
        raise OodmlError(
            f"batch_size={batch_size:,} would hold each of the {images:,} training images {batch_size // images:,} "
            f"times: use at most {max(LARGE_BATCH, 2 * images):,}."
        )
