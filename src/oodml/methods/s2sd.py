"""S2SD: simultaneous similarity-based self-distillation (Roth et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodml._checks import require_choice
from oodml._errors import OodmlError
from oodml.methods.base import COMPILED_OBJECTIVE, Batch, Context, Method
from oodml.methods.distillation import (
    DISTILLATIONS,
    GAMMA,
    TOPOLOGIES,
    check_strength,
    distilled_pairs,
    relations,
)
from oodml.methods.objective import Spec, as_dict, check_objective, make_objective, own_groups, remembers
from oodml.methods.registry import register_method
from oodml.models.embedder import Embedder, Outputs, Pooled
from oodml.models.heads import Head

HEAD, FEATURES, WINDOWS = "embedding", "features", "windows"
TARGETS = (512, 1024, 1536, 2048)
FEATURE_START = 1000
# The paper's abbreviations: one target or several, with features or without, averages or averages plus maxima.
VARIANTS: dict[str, dict[str, Any]] = {
    "dsd": {"targets": (2048,), "feature_distill": False, "pooling": "avg"},
    "dsda": {"targets": (2048,), "feature_distill": False, "pooling": "avg+max"},
    "msd": {"targets": None, "feature_distill": False, "pooling": "avg"},
    "msda": {"targets": None, "feature_distill": False, "pooling": "avg+max"},
    "msdf": {"targets": None, "feature_distill": True, "pooling": "avg"},
    "msdfa": {"targets": None, "feature_distill": True, "pooling": "avg+max"},
}


@register_method(
    "s2sd",
    paper="Roth et al. 2021, Simultaneous Similarity-based Self-Distillation for Deep Metric Learning",
    search={"gamma": (1.0, 250.0), "temperature": (0.2, 2.0)},
    revision=2,
)
class S2SD(Method):
    """A small embedding is distilled from wider ones trained on the same features, which are dropped afterwards.

        L = ½ (L_base(f) + mean_k L_base(g_k)) + γ/m · Σ KD(source ← target) + γ · KD(f ← features)

    f is the embedding kept at test time, g_1 … g_m are `targets` wide MLPs of `layers` layers on the pooled features,
    each with a copy of the `base` loss and its own mined tuples. KD = T²/b · Σ_rows KL(stop-gradient target ‖ source)
    of row softmaxes of the similarity matrices (ablations of tables 9, 11, 15: `distillation`, `topology`, `detach`).
    Features are distilled after `feature_start` steps (default: 1,000, or a tenth of a shorter run). With
    `feature_windows=(height, width)` they are averages over windows of the feature map, whose stride is their size,
    instead of one average over all of it (table 14: (3, 3), (1, 1), (2, 2), (4, 1)).

    `variant` sets targets, feature_distill and pooling as the paper's abbreviations do (default MSDF); the three may
    also be given one by one. Targets default to those of 512, 1024, 1536, 2048 wider than the embedding. The
    papers take `gamma` 5 on SOP. `pooling="avg+max"` applies to the branches and the distilled feature only.
    `setup="joint"` trains the branches without distillation, `setup="concurrent"` the base head alone on detached
    features (table 7).
    `nested_lr="base"` trains the losses' own parameters (β, proxies) at the base rate, as the authors' code and the
    published numbers of margin do; proxies hardly move at that rate.
    """

    def __init__(
        self,
        base: Spec = "multisimilarity",
        variant: str = "msdf",
        targets: Sequence[int] | None = None,
        feature_distill: bool | None = None,
        pooling: str | None = None,
        gamma: float = GAMMA,
        temperature: float = 1.0,
        distillation: str = "r-kl",
        topology: str = "multi",
        layers: int = 2,
        detach: bool = True,
        feature_start: int | None = None,
        feature_windows: Sequence[int] | None = None,
        setup: str = "distil",
        nested_lr: str = "own",
    ) -> None:
        super().__init__()
        require_choice("s2sd", VARIANTS, variant=variant)
        require_choice("s2sd", DISTILLATIONS, distillation=distillation)
        require_choice("s2sd", TOPOLOGIES, topology=topology)
        require_choice("s2sd", ("distil", "joint", "concurrent"), setup=setup)
        require_choice("s2sd", ("own", "base"), nested_lr=nested_lr)
        chosen = VARIANTS[variant]
        self.targets = chosen["targets"] if targets is None else tuple(targets)
        self.feature_distill = chosen["feature_distill"] if feature_distill is None else feature_distill
        self.pooling = chosen["pooling"] if pooling is None else pooling
        if self.targets is not None and not 1 <= len(self.targets) <= 16:
            raise OodmlError(f"S2SD takes 1 to 16 targets, got {len(self.targets)}.")
        if not all(isinstance(width, int) and width >= 1 for width in self.targets or ()):
            raise OodmlError(f"S2SD's targets are widths, whole numbers of at least 1, got {targets!r}.")
        if layers not in range(5):
            raise OodmlError(f"S2SD's branches have 0 to 4 layers, got layers={layers}.")
        if (feature_start or 0) < 0:
            raise OodmlError(f"feature_start is a step of at least 0, got {feature_start}.")
        if feature_windows is not None and (len(feature_windows) != 2 or min(feature_windows) < 1):
            raise OodmlError(f"feature_windows is (height, width), each 1 or more, got {feature_windows!r}.")
        if feature_windows is not None and not self.feature_distill:
            raise OodmlError("feature_windows needs feature_distill=True: without it no features are distilled.")
        if setup != "distil" and (distillation, topology) != ("r-kl", "multi"):
            raise OodmlError(f"setup={setup!r} has no distillation: leave distillation and topology out.")
        if not isinstance(detach, bool):
            raise OodmlError(f"detach is True or False, got {detach!r}.")
        check_strength(gamma, temperature)
        self.spec = as_dict(base, "base")
        objective = check_objective(self.spec)
        self.spherical, self.mixable = objective.normalise, not remembers(objective)
        self.gamma, self.temperature, self.layers, self.detach = gamma, temperature, layers, detach
        self.distil = DISTILLATIONS[distillation]
        self.topology, self.feature_start = topology, feature_start
        self.windows = None if feature_windows is None else "windows:{}x{}".format(*feature_windows)
        self.set_up, self.nested_lr = setup, nested_lr

    def check(self, embedding_dim: int, train: str) -> None:
        super().check(embedding_dim, train)
        self._widths(embedding_dim)
        if self.windows and train == "head":
            raise OodmlError(
                "feature_windows needs feature maps, and train='head' has pooled features: use train='all'."
            )

    def _widths(self, embedding_dim: int) -> list[int]:
        widths = list(self.targets or [width for width in TARGETS if width > embedding_dim])
        if not widths:
            raise OodmlError(
                f"S2SD distils from spaces wider than the embedding, and none of {TARGETS} is wider than "
                f"{embedding_dim}: give targets=, e.g. targets=[{2 * embedding_dim}]."
            )
        if self.topology == "chained-printed" and (len(widths) < 2 or not self.layers):
            raise OodmlError(
                "topology='chained-printed' distils between branches and needs two or more, of one layer or more: give "
                "targets= with two widths or more, or use topology='chained'."
            )
        return widths

    def heads(self, feature_dim: int) -> dict[str, Head]:
        heads = {
            HEAD: Head(self.context.embedding_dim),
            FEATURES: Head(feature_dim, layers=0, pooling=self.pooling, test=False),
        }
        if self.windows:
            heads[WINDOWS] = Head(feature_dim, layers=0, pooling=self.windows, test=False)
        return heads

    def setup(self, context: Context) -> None:
        super().setup(context)
        if self.feature_start is None:
            self.feature_start = min(FEATURE_START, context.total_steps // 10)
        self.branches = Branches(context.feature_dim, self._widths(context.embedding_dim), self.layers)
        self.pairs = distilled_pairs(self.topology, self.branches.widths)
        self.objective = make_objective(self.spec, context)
        self.target_objectives = nn.ModuleList(
            make_objective(self.spec, context, width) for width in self.branches.widths
        )

    def features_loss(self, pooled: Pooled, batch: Batch, embedder: Embedder, step: int) -> Tensor:
        auxiliary = embedder.apply_heads(pooled, [FEATURES, *([WINDOWS] if self.windows else [])]).heads
        seen = pooled.map(Tensor.detach) if self.set_up == "concurrent" else pooled
        embedding = embedder.apply_heads(seen, [HEAD]).heads[HEAD]
        assert self.feature_start is not None
        distilled = None
        if self.feature_distill and step >= self.feature_start:
            distilled = auxiliary[WINDOWS if self.windows else FEATURES].detach()
        return self.terms(embedding, auxiliary[FEATURES], batch.labels, distilled)

    def terms(self, embedding: Tensor, features: Tensor, labels: Tensor, distilled: Tensor | None) -> Tensor:
        """Losses of all spaces, the distillation between them, and that of the `distilled` features if given."""
        spaces = [embedding, *self.branches(features)]
        objectives = [self.objective, *self.target_objectives]
        losses = [objective(space, labels) for objective, space in zip(objectives, spaces, strict=True)]
        total = (losses[0] + torch.stack(losses[1:]).mean()) / 2
        if self.set_up != "distil" or not self.gamma:
            return total
        similar = [relations(space) for space in spaces]
        source = torch.stack([similar[i] for i, _ in self.pairs])
        target = torch.stack([similar[j] for _, j in self.pairs])
        distances = self.distil(source, target.detach() if self.detach else target, self.temperature)
        distance = distances.sum() / len(self.branches.widths)
        if distilled is not None:
            distance = distance + self.distil(similar[0], relations(distilled), self.temperature)
        return total + self.gamma * distance

    def compile_parts(self) -> None:
        """All spaces as one graph; otherwise five losses and their distillation are hundreds of small kernels."""
        self.terms = torch.compile(self.terms, **COMPILED_OBJECTIVE)  # type: ignore[method-assign]

    def test_embedding(self, outputs: Outputs) -> Tensor:
        embeddings = outputs.heads[HEAD]
        return F.normalize(embeddings, dim=-1) if self.spherical else embeddings

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        """The branches at the base rate without weight decay, as coded; the losses' own parameters at their rates."""
        groups = [{"params": list(self.branches.parameters()), "lr": base_lr, "weight_decay": 0.0}]
        for objective in (self.objective, *self.target_objectives):
            own = own_groups(objective, base_lr)
            groups += own if self.nested_lr == "own" else [{**group, "lr": base_lr} for group in own]
        return [group for group in groups if group["params"]]


class Branches(nn.Module):
    """K heads g_k: features (b, D) -> [(b, t_1), …, (b, t_K)]; each is Linear(D, t_k), then ReLU and Linear(t_k, t_k)
    for every further layer.

    The first layers of all branches are one product. The further layers are one batched product if all branches have
    the same width, else one product per branch. Without layers the only branch is the features themselves.
    """

    def __init__(self, feature_dim: int, widths: Sequence[int], layers: int = 2) -> None:
        super().__init__()
        self.widths = list(widths) if layers else [feature_dim]
        self.first = nn.Linear(feature_dim, sum(self.widths)) if layers else None
        self.further = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width) for width in self.widths) for _ in range(layers - 1)
        )

    def forward(self, features: Tensor) -> list[Tensor]:
        if self.first is None:
            return [features]
        outputs = list(self.first(features).split(self.widths, dim=-1))
        for layer in self.further:
            outputs = self._inner(layer, [torch.relu(x) for x in outputs])
        return outputs

    def _inner(self, layer: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
        linears: list[nn.Linear] = list(layer)  # type: ignore[call-overload]
        if len(set(self.widths)) > 1 or len(linears) == 1:
            return [linear(x) for linear, x in zip(linears, inputs, strict=True)]
        weights = torch.stack([linear.weight for linear in linears])
        biases = torch.stack([linear.bias for linear in linears])
        return list(torch.baddbmm(biases[:, None], torch.stack(inputs), weights.mT).unbind(0))
