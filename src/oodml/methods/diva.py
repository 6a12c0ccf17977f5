"""DiVA: four embeddings of different tasks, decorrelated and concatenated (Milbich et al. 2020)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodml._checks import require_choice
from oodml._errors import OodmlError
from oodml.methods.base import Batch, Context, Method
from oodml.methods.decorrelation import make_regressor, predicted_correlation, scaled_weight
from oodml.methods.objective import Spec, check_loss_base, make_objective, own_groups, task_objective
from oodml.methods.registry import register_method
from oodml.miners.distance import log_inverse_density
from oodml.models.embedder import Embedder, Outputs, Pooled
from oodml.models.heads import Head

DISCRIMINATIVE, SELF, SHARED, INTRA = "discriminative", "self-similarity", "shared", "intra"
HEADS = (DISCRIMINATIVE, SELF, SHARED, INTRA)
SHARINGS = ("full", "standard", "permuted")
INTRAS = ("intra", "permuted")
LOWER, UPPER = 0.5, 1.4
WEIGHTINGS = ("query", "batch")
DECORRELATION = 150.0  # of embeddings of 128 dimensions: between the papers' values, 100 to 1,500 by dataset


@register_method(
    "diva",
    paper="Milbich et al. 2020, DiVA: Diverse Visual Feature Aggregation for Deep Metric Learning",
    search={"alpha": (0.05, 0.5), "decorrelation": (50.0, 2000.0)},
    revision=2,
)
class DiVA(Method):
    """Four quarters of the embedding, each with its own task on the same features.

        L = L_discriminative + α (L_self + L_shared + L_intra) − ρ Σ_k r(R(φ), R(φ_k))

    Discriminative: the `base` loss. Shared: the base loss on triplets of three classes (`sharing`: the modes of the
    miner `shared`). Intra: the base loss on triplets within a class, drawn with replacement, so that two images per
    class are enough (`intra="permuted"`: under permuted labels, as in the code behind ooDML). Self: momentum contrast
    of two views of an image against a `queue` of earlier batches, temperature τ, momentum m, the negatives' logits
    weighted by their distance (`weighting`: per "query", or over the "batch" as in the authors' first code). r is the
    squared correlation of φ with what a regressor (`hidden` wide) predicts from each other embedding, with reversed
    gradients as in `sharing`.

    At test time the four, on the unit sphere, are weighted by `weights` (discriminative, others), concatenated and
    brought to unit length. ρ (`decorrelation`) is 150 for embeddings of 128 dimensions each, and (D/128)² times that
    for others. The papers choose α (0.15 to 0.3), ρ, queue and weights by dataset; `protocol=` sets them.

    With train="head" the second view is a cached one and only the head has a momentum copy.
    """

    mixable = False  # the second view of an image is not mixed

    def __init__(
        self,
        base: Spec = "margin",
        alpha: float = 0.2,
        decorrelation: float | None = None,
        queue: int = 30,
        weights: Sequence[float] = (1.0, 1.0),
        temperature: float = 0.01,
        momentum: float = 0.9,
        weighting: str = "query",
        sharing: str = "standard",
        intra: str = "intra",
        hidden: int = 512,
    ) -> None:
        super().__init__()
        check_loss_base(base, "diva")
        require_choice("diva", WEIGHTINGS, weighting=weighting)
        require_choice("diva", SHARINGS, sharing=sharing)
        require_choice("diva", INTRAS, intra=intra)
        if min(alpha, decorrelation or 0) < 0 or temperature <= 0 or not 0 <= momentum <= 1:
            raise OodmlError(
                f"diva needs alpha, decorrelation >= 0, temperature > 0 and 0 <= momentum <= 1; got {alpha=}, "
                f"{decorrelation=}, {temperature=}, {momentum=}."
            )
        if not all(isinstance(n, int) and n >= 1 for n in (queue, hidden)) or len(weights) != 2:
            raise OodmlError(
                f"diva needs whole numbers >= 1 as queue and hidden, and two weights; got {queue=}, {hidden=}, "
                f"{weights=}."
            )
        self.base, self.alpha, self.decorrelation, self.queue, self.weights = base, alpha, decorrelation, queue, weights
        self.temperature, self.momentum, self.weighting = temperature, momentum, weighting
        self.sharing, self.intra, self.hidden = sharing, intra, hidden
        self.keys: Tensor | None = None

    def check(self, embedding_dim: int, train: str) -> None:
        super().check(embedding_dim, train)
        if embedding_dim % 4:
            raise OodmlError(f"diva splits the embedding in four, and {embedding_dim} is not a multiple of 4.")

    def heads(self, feature_dim: int) -> dict[str, Head]:
        return {name: Head(self.context.embedding_dim // 4) for name in HEADS}

    def setup(self, context: Context) -> None:
        super().setup(context)
        dim = context.embedding_dim // 4
        if self.decorrelation is None:
            self.decorrelation = scaled_weight(DECORRELATION, dim)
        across = {"name": "shared", "mode": self.sharing}
        within = (
            {"name": "intra", "distinct": False} if self.intra == "intra" else {"name": "shared", "mode": "permuted"}
        )
        self.objective = make_objective(self.base, context, dim)
        self.shared_objective = task_objective(self.base, across, context, dim)
        self.intra_objective = task_objective(self.base, within, context, dim)
        self.regressors = nn.ModuleDict({name: make_regressor(dim, self.hidden) for name in HEADS[1:]})

    def connect(self, embedder: Embedder) -> None:
        whole = self.context.train == "all"
        self.slow = Momentum(embedder, SELF, self.queue, self.context.batch_size, self.momentum, whole)

    def features_loss(self, pooled: Pooled, batch: Batch, embedder: Embedder, step: int) -> Tensor:
        spaces = embedder.apply_heads(pooled, HEADS).heads
        self.keys = self.slow.keys(batch.another_view(), embedder)
        own = contrast(F.normalize(spaces[SELF], dim=1), self.keys, self.slow.queue, self.temperature, self.weighting)
        auxiliary = (
            own
            + self.shared_objective(spaces[SHARED], batch.labels)
            + self.intra_objective(spaces[INTRA], batch.labels)
        )
        loss = self.objective(spaces[DISCRIMINATIVE], batch.labels) + self.alpha * auxiliary
        if not self.decorrelation:
            return loss
        predicted = [
            predicted_correlation(regressor, spaces[name], spaces[DISCRIMINATIVE])
            for name, regressor in self.regressors.items()
        ]
        return loss - self.decorrelation * torch.stack(predicted).sum()

    def after_step(self, embedder: Embedder, step: int) -> None:
        assert self.keys is not None
        self.slow.update(embedder, self.keys, step)

    def compile_parts(self) -> None:
        super().compile_parts()
        self.slow.slow.backbone.compile(dynamic=False)

    def test_embedding(self, outputs: Outputs) -> Tensor:
        first, others = self.weights
        unit = {name: F.normalize(outputs.heads[name], dim=-1) for name in HEADS}
        scaled = [(first if name == DISCRIMINATIVE else others) * each for name, each in unit.items()]
        return F.normalize(torch.cat(scaled, dim=-1), dim=-1)

    def watched(self, outputs: Outputs) -> dict[str, Tensor]:
        """Each of the four on its own."""
        return {name: F.normalize(outputs.heads[name], dim=-1) for name in HEADS}

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        """The losses' own parameters at their rates, the regressors at the base rate."""
        objectives = (self.objective, self.shared_objective, self.intra_objective)
        groups = [group for objective in objectives for group in own_groups(objective, base_lr)]
        return [*groups, {"params": list(self.regressors.parameters()), "lr": base_lr, "weight_decay": 0.0}]


def log_weights(distances: Tensor, dim: int) -> Tensor:
    """log w of each key for each query, (b, K) from distances: w ∝ 1/q(max(d, 0.5)), 0 beyond 1.4, sum 1.

    q is the density of distances on the sphere in `dim` dimensions, so that all distances have the same total weight.
    A query that is far from all keys has weights of 0.
    """
    log_density = log_inverse_density(distances, dim, LOWER)
    return log_density.masked_fill_(distances > UPPER, -torch.inf).log_softmax(1).nan_to_num_(nan=-torch.inf)


def batch_weights(distances: Tensor, dim: int) -> Tensor:
    """The weights of the authors' code, (b, K): 1/q relative to the largest of the batch, divided by its sum over the
    queries instead of the keys. A key beyond 1.4 of every query has the weight 1/b for each."""
    log_density = log_inverse_density(distances, dim, LOWER)
    weights = (log_density - log_density.max()).exp().masked_fill(distances > UPPER, 0.0)
    weights = weights.clamp_min(torch.finfo(distances.dtype).tiny)
    return weights / weights.sum(0)


def contrast(queries: Tensor, keys: Tensor, queue: Tensor, temperature: float, weighting: str = "query") -> Tensor:
    """Mean −log e^{s/τ} / (e^{s/τ} + Σ_j e^{w_j s_j/τ}), a scalar; s = q·k of a unit query and its own key.

    The sum goes over the queue of earlier keys (K, d). w are `log_weights` ("query") or `batch_weights` ("batch"):
    near keys have their similarity, the others e^0. With weights on the terms instead, Σ_j K w_j e^{s_j/τ}, gradients
    at τ = 0.01 are ten times as large, and on CUB recall@1 fell to 25.
    """
    products = queries @ queue.T
    with torch.no_grad():
        distances = (2 - 2 * products).clamp_min(0).sqrt()
        dim = queries.shape[1]
        weights = log_weights(distances, dim).exp() if weighting == "query" else batch_weights(distances, dim)
    own = (queries * keys).sum(1, keepdim=True) / temperature
    return -torch.cat([own, products * weights / temperature], dim=1).log_softmax(1)[:, 0].mean()


class Momentum(nn.Module):
    """A slow copy of the embedder with one head, and the queue of keys it made: θ_key ← m θ_key + (1 − m) θ.

    With a frozen backbone only the head is copied. The copy is always in evaluation mode; running statistics are copied
    without momentum. The queue holds the keys of the last `batches` steps, at the start random directions.
    """

    queue: Tensor

    def __init__(
        self, embedder: Embedder, head: str, batches: int, batch_size: int, momentum: float, whole: bool
    ) -> None:
        super().__init__()
        self.head, self.batches, self.momentum = head, batches, momentum
        backbone = copy.deepcopy(embedder.backbone) if whole else None
        self.slow = Embedder(backbone, {head: embedder.specs[head]}, embedder.feature_dim)  # type: ignore[arg-type]
        self.slow.heads.load_state_dict({f"{head}.{k}": v for k, v in embedder.heads[head].state_dict().items()})
        self.slow.feature_scale.copy_(embedder.feature_scale)
        self.slow.requires_grad_(False).eval()
        if whole:
            self.slow.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        rows = torch.randn(batches * batch_size, embedder.specs[head].dim)
        self.register_buffer("queue", F.normalize(rows, dim=1))

    @torch.no_grad()
    def keys(self, inputs: Tensor, embedder: Embedder) -> Tensor:
        """Unit keys (b, d) of the whole batch."""
        self.slow.autocast = embedder.autocast
        keys = F.normalize(self.slow(inputs).heads[self.head], dim=1)
        return keys if embedder.gather is None else embedder.gather(keys)

    @torch.no_grad()
    def update(self, embedder: Embedder, keys: Tensor, step: int) -> None:
        """Move the copy towards the embedder, and replace the oldest keys by the newest."""
        start = step % self.batches * len(keys)
        self.queue[start : start + len(keys)].copy_(keys)
        pairs = [(self.slow.heads[self.head], embedder.heads[self.head])]
        if self.slow.backbone is not None:
            pairs.append((self.slow.backbone, embedder.backbone))
        for slow, fast in pairs:
            torch._foreach_lerp_(list(slow.parameters()), list(fast.parameters()), 1 - self.momentum)
            if buffers := list(slow.buffers()):
                torch._foreach_copy_(buffers, list(fast.buffers()))
