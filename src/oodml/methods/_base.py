"""What a method is: the way a batch becomes a loss."""

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

# What `torch.compile` is told about objectives. A backward pass that is handed a tensor and a view of it may be written
# over the one before it has read the other (torch 2.13 and before), so nothing is written over: batches are small.
COMPILED_OBJECTIVE: dict[str, Any] = {
    "dynamic": False,
    "options": {"inplace_buffers": False, "allow_buffer_reuse": False},
}

Teacher = str | Mapping[str, str]  # a finished run: its folder, or {"run": ID} next to the run that learns from it


@dataclass(frozen=True)
class Context:
    """What a run knows and a method may need to build its losses."""

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
    so that losses and miners always see the whole batch, whose labels these are."""

    inputs: Tensor  # images (b / processes, 3, h, w) in [0, 1], or cached pooled features (b / processes, D)
    labels: Tensor  # (b,) int64, 0 .. num_classes - 1, on the device
    indices: np.ndarray  # (b,) positions in the training set, on the host
    turn: int  # 0 .. batches_per_step - 1
    another_view: Callable[[], Tensor]  # draws a second augmented view of the same images, shaped as `inputs`


class Method(nn.Module):
    """Heads, losses and whatever else turns a batch into a number to minimise.

    Life: `__init__(**options)` checks the options and reads no data; `check` refuses what a run cannot do; `heads`
    says which heads the embedder needs; `setup` builds losses and other modules once the number of classes is known;
    `connect` shows the embedder to a method that copies parts of it. A step draws `batches_per_step` batches, and each
    is one call of `loss`, one backward pass and one update (parameters that took no part have no gradient and stay
    put); `after_step` then does the method's own bookkeeping: a momentum encoder, a step of an extra optimiser. An
    epoch shows every image to each turn: with two batches a step it has as many steps as with one, twice the updates.

    Most methods write `features_loss`, the part after the backbone: another method can then wrap them and share one
    pass of the backbone with them. One that cannot be written so replaces `loss`, and cannot be wrapped.

    State that must survive a resume belongs in parameters and buffers; randomness comes from `Context.generator`.
    """

    batches_per_step: int = 1
    needs_images: bool = False  # True: cannot work from cached features
    mixable: bool = True  # False: looks at more of a batch than features and labels, which cannot be mixed with others
    context: Context

    def check(self, embedding_dim: int, train: str) -> None:
        """Raise for a size or a depth of training that the method cannot serve; called before any data is read."""
        if train == "head" and self.needs_images:
            raise OodmlError(f"{self.describe()} needs the images themselves, and train='head' has only features.")

    def describe(self) -> str:
        """How an error message calls the method."""
        return f"The method {type(self).__name__.lower()!r}"

    def heads(self, feature_dim: int) -> dict[str, Head]:
        """Named heads of the embedder; those with `test=True` are kept after training."""
        raise NotImplementedError

    def setup(self, context: Context) -> None:
        """Build losses and modules; runs on the CPU, with torch's default generator seeded by the run."""
        self.context = context

    def connect(self, embedder: Embedder) -> None:
        """Copy what the method needs of the embedder, before it moves to the device or is compiled; as `setup` runs."""

    def batch_labels(self, turn: int) -> Tensor | None:
        """The labels (n,) of the training images by which the batches of a turn are composed; None: their classes.
        Asked for at the start of every epoch, and when a run is resumed; must follow from parameters and buffers."""
        return None

    def inputs(self, batch: Batch, step: int) -> Tensor:
        """What the backbone is shown."""
        return batch.inputs

    def loss(self, batch: Batch, embedder: Embedder, step: int) -> Tensor:
        """The number to minimise, a scalar on the device; no host synchronisation."""
        return self.features_loss(embedder.pool(self.inputs(batch, step)), batch, embedder, step)

    def features_loss(self, pooled: Pooled, batch: Batch, embedder: Embedder, step: int) -> Tensor:
        """The loss on the pooled features of `inputs`, whoever computed them."""
        raise NotImplementedError

    def compile_parts(self) -> None:
        """Compile what a step spends its kernel launches on; the losses, unless a method knows better."""
        for module in self.modules():
            if isinstance(module, Loss):
                module.compile(**COMPILED_OBJECTIVE)

    def test_embedding(self, outputs: Outputs) -> Tensor:
        """The embedding users get, (b, embedding_dim), on the sphere where the method's loss is."""
        raise NotImplementedError

    def watched(self, outputs: Outputs) -> dict[str, Tensor]:
        """Other embeddings (b, d), by name, whose scores stand beside those of the test embedding in the history."""
        return {}

    def facts(self) -> dict[str, float]:
        """Numbers of the method's own for the history, asked for at every evaluation."""
        return {}

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        """The method's own parameters (proxies, boundaries, ...) with their learning rates."""
        return []

    def extra_optimisers(self) -> list[torch.optim.Optimizer]:
        """Optimisers that the method steps itself; the run saves and restores them."""
        return []

    def on_epoch_start(self, epoch: int, embedder: Embedder, features: Callable[[], tuple[Pooled, Tensor]]) -> None:
        """Called before each epoch; `features()` gives pooled features and labels of the whole training set."""

    def after_step(self, embedder: Embedder, step: int) -> None:
        """Called after the update(s) of a step."""
