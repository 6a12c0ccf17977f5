"""The loss, watched without making the device wait: values stay there until a log line needs them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from oodml._errors import OodmlError


class _Seen(NamedTuple):
    step: int
    indices: np.ndarray


class LossWatch:
    """Keeps the losses of the steps since the last reading on the device, and their batches on the host."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.values = torch.zeros(capacity, device=device)
        self.seen: list[_Seen] = []

    @property
    def is_full(self) -> bool:
        return len(self.seen) == len(self.values)

    def record(self, step: int, indices: np.ndarray, loss: Tensor) -> None:
        self.values[len(self.seen)].copy_(loss.detach())  # device to device: no synchronisation
        self.seen.append(_Seen(step, indices))

    @contextlib.contextmanager
    def explaining(self, step: int, indices: np.ndarray, last_checkpoint: str) -> Iterator[None]:
        """Add step, images and checkpoint to a loss's complaint; an earlier loss that was not finite goes first."""
        try:
            yield
        except OodmlError as error:
            self.read(last_checkpoint)
            raise OodmlError(f"{error} This was step {step}, on {_images(indices)}. {last_checkpoint}") from error

    def read(self, last_checkpoint: str) -> list[float]:
        """The losses since the last reading; raises at the first one that is not finite. Synchronises."""
        values = self.values[: len(self.seen)].tolist()
        seen, self.seen = self.seen, []
        for value, (step, indices) in zip(values, seen, strict=True):
            if not math.isfinite(value):
                raise OodmlError(
                    f"The loss became {value} at step {step}. Lower the learning rate, use precision='fp32', or look "
                    f"at {_images(indices)}. {last_checkpoint}"
                )
        return values


def _images(indices: np.ndarray, shown: int = 5) -> str:
    """The first few of a batch: a screen full of numbers hides what to do."""
    more = f" and {len(indices) - shown} more" if len(indices) > shown else ""
    return f"the images {', '.join(map(str, indices[:shown].tolist()))}{more} (positions in the training set)"
