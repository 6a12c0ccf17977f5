"""`Method`, the way a batch becomes a loss; the `Batch` and the `Context` it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from oodml._errors import OodmlError
from oodml.losses import Loss
from oodml.models.embedder import Embedder, Outputs, Pooled
from oodml.models.heads import Head

# Options of `torch.compile` for objectives. With a tensor and a view of it as inputs, a compiled backward pass may
# overwrite one before it has read the other (torch 2.13 and before), so buffers are not reused; batches are small.
COMPILED_OBJECTIVE: dict[str, Any] = {
    "dynamic": False,
    "options": {"inplace_buffers": False, "allow_buffer_reuse": False},
}

Teacher = str | Mapping[str, str]  # a finished run: its folder, or {"run": ID} next to the run that learns from it


@dataclass(frozen=True)
class Context:
    """What a method may need to build its losses."""

    num_classes: int
    embedding_dim: int  # size at test time
    feature_dim: int  # size of the pooled features
    total_steps: int
    train: str = "all"  # or "head"
    lr: float = 1e-5  # the base rate
    batch_size: int = 0  # of the whole batch, over all processes
    num_images: int = 0  # of the training set
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    generator: torch.Generator | None = None  # on `device`; seeded anew before every batch, so resume is exact
    load_teacher: Callable[[Teacher], Callable[[Tensor], Tensor]] | None = None  # a run as inputs -> embeddings
    cluster: Callable[[Tensor, int], Tensor] | None = None  # k-means: (rows (n, D), k) -> the cluster of each, (n,)


@dataclass(frozen=True)
class Batch:
    """One batch. With several processes `inputs` is this process's share and the embedder gathers the features,
    so that losses and miners always see the whole batch, to which `labels` belong."""

    inputs: Tensor  # images (b / processes, 3, h, w) in [0, 1], or cached pooled features (b / processes, D)
    labels: Tensor  # (b,) int64, 0 .. num_classes - 1, on the device
    indices: np.ndarray  # (b,) positions in the training set, on the host
    turn: int  # 0 .. batches_per_step - 1
    another_view: Callable[[], Tensor]  # draws a second augmented view of the same images, shaped as `inputs`


class Method(nn.Module):
    """Heads, losses and everything else that turns a batch into a number to minimise.

    The order of calls: `__init__(**options)` checks the options and reads no data; `check` raises for what a run cannot
    do; `setup` builds losses and other modules, once the number of classes is known; `heads` names the heads of the
    embedder; `connect` gives the embedder to a method that copies parts of it. A step draws `batches_per_step` batches,
    and each is one call of `loss`, one backward pass and one update (parameters without a gradient do not change);
    `after_step` then updates what the method keeps itself: a momentum encoder, an extra optimiser. An epoch uses every
    image once per turn: with two batches per step it has as many steps as with one, and twice the updates.

    Most methods implement `features_loss`, the part after the backbone, so that another method can wrap them and share
    one pass of the backbone with them. A method that overrides `loss` instead cannot be wrapped.

    State that is needed to resume belongs in parameters and buffers; random numbers come from `Context.generator`.
    """

    batches_per_step: int = 1
    needs_images: bool = False  # True: cannot work from cached features
    mixable: bool = True  # False: uses more of a batch than features and labels, so `mixup` cannot wrap it
    context: Context

    def check(self, embedding_dim: int, train: str) -> None:
        """Raise for an embedding size or a depth of training that the method does not support; reads no data."""
        if train == "head" and self.needs_images:
            raise OodmlError(f"{self.describe()} needs images, and train='head' has only features: use train='all'.")

    def describe(self) -> str:
        """The method in error messages."""
        return f"The method {type(self).__name__.lower()!r}"

    def heads(self, feature_dim: int) -> dict[str, Head]:
        """Named heads of the embedder; those with `test=True` are kept after training."""
        raise NotImplementedError

    def setup(self, context: Context) -> None:
        """Build losses and modules; runs on the CPU, with torch's default generator seeded by the run."""
        self.context = context

    def connect(self, embedder: Embedder) -> None:
        """Copy what the method needs of the embedder; called after `setup`, before it is moved or compiled."""

    def batch_labels(self, turn: int) -> Tensor | None:
        """The labels (n,) of the training images by which the batches of a turn are composed; None: their classes.
        Called at the start of every epoch and when a run is resumed; must depend on parameters and buffers only."""
        return None

    def inputs(self, batch: Batch, step: int) -> Tensor:
        """The input of the backbone."""
        return batch.inputs

    def loss(self, batch: Batch, embedder: Embedder, step: int) -> Tensor:
        """The number to minimise, a scalar on the device; no host synchronisation."""
        return self.features_loss(embedder.pool(self.inputs(batch, step)), batch, embedder, step)

    def features_loss(self, pooled: Pooled, batch: Batch, embedder: Embedder, step: int) -> Tensor:
        """The loss on the pooled features of `inputs`."""
        raise NotImplementedError

    def compile_parts(self) -> None:
        """Compile the parts of a step that launch many small kernels: the losses, unless a method overrides this."""
        for module in self.modules():
            if isinstance(module, Loss):
                module.compile(**COMPILED_OBJECTIVE)

    def test_embedding(self, outputs: Outputs) -> Tensor:
        """The embedding at test time, (b, embedding_dim); of unit length if the method's loss normalises."""
        raise NotImplementedError

    def watched(self, outputs: Outputs) -> dict[str, Tensor]:
        """Other embeddings (b, d), by name, whose scores are added to the history."""
        return {}

    def facts(self) -> dict[str, float]:
        """The method's own numbers for the history, read at every evaluation."""
        return {}

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        """The method's own parameters (proxies, boundaries, ...) with their learning rates."""
        return []

    def extra_optimisers(self) -> list[torch.optim.Optimizer]:
        """Optimisers that the method steps itself; checkpoints include them."""
        return []

    def on_epoch_start(self, epoch: int, embedder: Embedder, features: Callable[[], tuple[Pooled, Tensor]]) -> None:
        """Called before each epoch; `features()` gives pooled features and labels of the whole training set."""

    def after_step(self, embedder: Embedder, step: int) -> None:
        """Called after the update(s) of a step."""
