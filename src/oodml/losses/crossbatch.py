"""Cross-batch memory: the references of a loss on pairs or triplets include embeddings of past batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oodml._checks import require_whole
from oodml._errors import OodmlError
from oodml.losses import Loss, PairLoss, make_loss, register_loss
from oodml.losses.base import Tuples, require
from oodml.miners import Miner


@register_loss("crossbatch", paper="Wang et al. 2020", search={"memory_size": (256, 8192)})
class CrossBatch(Loss):
    """Any loss on pairs or triplets, with references from a memory of past batches.

    The base loss is computed on [batch; memory]: anchors are the samples of the batch, positives and negatives come
    from both. The memory holds the last `memory_size` embeddings, without gradients; embeddings drift slowly, so old
    ones approximate those of the current model. In evaluation mode the memory is read, not written.

    Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020, whose code starts after 1,000 steps (`warmup`)
    and adds a loss within the batch to one against the memory; here both are one set of references.

    For small batches and many classes, where a batch holds few hard negatives. Time and memory grow with batch times
    references (`angular`: references squared); penalties on embeddings are those of the batch. Explicit `tuples` index
    the batch followed by the memory; any sample may then be an anchor, and penalties are over all samples.

    Args:
        base: the loss: a name, or a dict of `name` and options.
        memory_size: number of embeddings in the memory.
        warmup: training steps before the memory is filled and used.
    """

    def __init__(
        self,
        base: str | dict[str, Any] = "contrastive",
        memory_size: int = 1024,
        warmup: int = 0,
        *,
        num_classes: int | None = None,
        embedding_dim: int | None = None,
        miner: Miner | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        dim = require("embedding_dim", "crossbatch", embedding_dim)
        require_whole(1, memory_size=memory_size)
        require_whole(0, warmup=warmup)
        objective = _build(base, num_classes, dim, miner, generator)
        super().__init__(num_classes=objective.num_classes, miner=objective.miner)
        self.base, self.memory_size, self.warmup = objective, memory_size, warmup
        self.normalise = objective.normalise  # type: ignore[misc]
        self.register_buffer("memory", torch.zeros(memory_size, dim))
        self.register_buffer("memory_labels", torch.zeros(memory_size, dtype=torch.int64))
        # Counters on the host: slicing the memory never waits for the device, and once the memory is full they are
        # constant, so a step is compiled once.
        self.filled, self.waiting = 0, warmup
        self.full = False

    memory: Tensor
    memory_labels: Tensor

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None = None) -> Tensor:
        return super().forward(embeddings, labels, tuples) if self.full else self._grow(embeddings, labels, tuples)

    @torch.compiler.disable  # while the memory grows, every size would be compiled anew
    def _grow(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None) -> Tensor:
        return super().forward(embeddings, labels, tuples)

    def compute(self, embeddings: Tensor, labels: Tensor, tuples: Tuples | None) -> Tensor:
        if embeddings.shape[1] != self.memory.shape[1]:
            raise OodmlError(
                f"embeddings have {embeddings.shape[1]} dimensions, but the memory was made for "
                f"embedding_dim={self.memory.shape[1]}."
            )
        known, references = labels, embeddings
        if self.filled:
            references = torch.cat([embeddings, self.memory[: self.filled].to(embeddings.dtype)])
            known = torch.cat([labels, self.memory_labels[: self.filled]])  # int64: no label is cut to a narrow batch's
        remembered = self.filled > 0 and tuples is None
        value = self.base.compute(references, known, tuples, len(labels) if remembered else None)
        if self.training and self.waiting == 0:
            self._remember(references.detach(), known, len(labels))
        elif self.training:
            self.waiting -= 1
        return value

    @torch.no_grad()
    def _remember(self, references: Tensor, labels: Tensor, batch: int) -> None:
        """Append the batch to the memory and drop the oldest rows: four copies, which a compiled graph may contain."""
        added = min(batch, self.memory_size)
        kept = min(self.filled, self.memory_size - added)
        end = kept + added
        for memory, source in ((self.memory, references), (self.memory_labels, labels)):
            if kept < self.filled:
                memory[:kept].copy_(source[len(source) - kept :])
            memory[kept:end].copy_(source[batch - added : batch])
        if not self.full:
            self.filled, self.full = end, end == self.memory_size

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.filled, self.waiting])

    def set_extra_state(self, state: Tensor) -> None:
        self.filled, self.waiting = (int(v) for v in state)
        self.full = self.filled == self.memory_size

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        return self.base.param_groups(base_lr)


def _build(
    base: str | dict[str, Any],
    num_classes: int | None,
    embedding_dim: int,
    miner: Miner | None,
    generator: torch.Generator | None,
) -> PairLoss:
    options: dict[str, Any] = {"name": base} if isinstance(base, str) else dict(base) if isinstance(base, dict) else {}
    if "name" not in options:
        raise OodmlError(f"base must be the name of a loss or a dict with a 'name', got {base!r}.")
    name = options.pop("name")
    for key in ("num_classes", "embedding_dim", "generator"):
        if key in options:
            raise OodmlError(f"base must not hold {key}: it is that of crossbatch. Leave it out of {base!r}.")
    if miner is not None and "miner" in options:
        raise OodmlError(f"base has the miner {options['miner']!r}, and another one was given: give one of them.")
    if miner is not None:
        options["miner"] = miner
    loss = make_loss(name, num_classes=num_classes, embedding_dim=embedding_dim, generator=generator, **options)
    if not isinstance(loss, PairLoss):
        raise OodmlError(f"The base of crossbatch must be a loss on pairs or triplets; {name!r} compares otherwise.")
    return loss
