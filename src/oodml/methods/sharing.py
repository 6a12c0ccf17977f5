"""Sharing Matters: a second encoder for what classes share (Milbich et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from oodml._checks import require_choice
from oodml._errors import OodmlError
from oodml.methods.base import Batch, Context, Method
from oodml.methods.decorrelation import make_regressor, predicted_correlation, scaled_weight
from oodml.methods.objective import Spec, check_loss_base, make_objective, own_groups
from oodml.methods.registry import register_method
from oodml.methods.shared_task import AS_BASE, SharedTask
from oodml.models.embedder import Embedder, Outputs, Pooled
from oodml.models.heads import Head

DISCRIMINATIVE, SHARED = "discriminative", "shared"
VARIANTS = ("discr", "shared", "both", "both+sep", "both+sep+decor")
GROUPS = 50  # as on SOP; the papers take 30 on CUB and 150 on CARS
GAMMA = 500.0  # of encoders of 128 dimensions: the best of table 7b, on CARS


@register_method(
    "sharing",
    paper="Milbich et al. 2020, Sharing Matters for Generalization in Deep Metric Learning",
    search={"gamma": (0.0, 2500.0)},
    revision=2,
)
class Sharing(Method):
    """Two encoders on the same features: φ separates classes, φ* is trained on what samples of different classes share.

        even batches: L(T; φ) − γ r(R(φ), R(φ*))        odd batches: L(T*; φ*) − γ r(R(φ), R(φ*))

    An epoch uses every image for each of the two tasks (algorithm 1): twice the updates of a plain loss.

    T are the triplets of the `base` loss; those of T* come from three different classes. r is the squared correlation
    of φ with what a two-layer regressor (`hidden` wide) predicts from φ*; reversed gradients R make the encoders lower
    what the regressor raises. Both halves of the embedding, each on the unit sphere, are concatenated at test time.

    `variant` (table 7a): "discr" and "shared" train one encoder of the full size on one task, "both" on both in turn;
    "both+sep" two encoders; "both+sep+decor" decorrelates them too. `triplets` (table 8a): "shared"; "groups" of
    k-means on the features, standardised by class unless `standardise=False`, made anew every `regroup_every` epochs
    (`groups`, 50 unless given; the papers take 30 on CUB, 150 on CARS), in batches with as many images per group as
    others per class; "min-dap": the nearest sample of another class is the positive; "no-constraint": any three samples
    at random. `sampling` (8b): "distance", "semihard" or "random". By distance, `positive` is drawn at random
    ("uniform") or by the inverse density like the negative ("distance", algorithm 1 to the letter), and nothing beyond
    `upper` is drawn (None: no cut; "base": the range of the base's own miner `distance`, else up to 1.4). `gamma` is
    500 (the paper's on CARS; 2,000 on CUB) for encoders of 128 dimensions, and (D/128)² times that for others.

    φ* is trained with the base loss; after a loss without tuples (proxies) with triplets (squared distances, eq. 1) and
    semihard negatives; a loss over pairs (N-pair) sees one positive and 16 random negatives an anchor.
    """

    def __init__(
        self,
        base: Spec = "margin",
        variant: str = "both+sep+decor",
        gamma: float | None = None,
        triplets: str = "shared",
        sampling: str | None = None,
        standardise: bool = True,
        groups: int | None = None,
        regroup_every: int = 4,
        hidden: int = 512,
        positive: str = "uniform",
        upper: float | str | None = AS_BASE,
    ) -> None:
        super().__init__()
        check_loss_base(base, "sharing")
        require_choice("sharing", VARIANTS, variant=variant)
        self.shared_task = SharedTask(base, triplets, sampling, positive, upper)
        self.shared_task.check()
        if (gamma or 0) < 0 or regroup_every < 1 or hidden < 1 or (groups is not None and groups < 2):
            raise OodmlError(
                f"sharing needs gamma >= 0, regroup_every >= 1, hidden >= 1 and groups >= 2; got {gamma=}, "
                f"{regroup_every=}, {hidden=}, {groups=}."
            )
        if gamma and variant != VARIANTS[-1]:
            raise OodmlError(
                f"gamma={gamma:g} weights the decorrelation, and variant={variant!r} has none: leave gamma out."
            )
        self.base, self.variant, self.gamma, self.triplets = base, variant, gamma, triplets
        if groups is not None and triplets != "groups":
            raise OodmlError(f"groups={groups} needs triplets='groups', got triplets={triplets!r}.")
        self.standardise, self.num_groups = standardise, groups
        self.regroup_every, self.hidden = regroup_every, hidden
        self.batches_per_step = 2 if variant.startswith("both") else 1
        self.separate = "sep" in variant
        self.mixable = triplets != "groups"

    def check(self, embedding_dim: int, train: str) -> None:
        super().check(embedding_dim, train)
        if self.separate and embedding_dim % 2:
            raise OodmlError(f"sharing splits the embedding in two halves, and {embedding_dim} is odd.")

    def heads(self, feature_dim: int) -> dict[str, Head]:
        if not self.separate:
            return {DISCRIMINATIVE: Head(self.context.embedding_dim)}
        return {name: Head(self.context.embedding_dim // 2) for name in (DISCRIMINATIVE, SHARED)}

    def setup(self, context: Context) -> None:
        super().setup(context)
        dim = context.embedding_dim // 2 if self.separate else context.embedding_dim
        if self.triplets == "groups":
            groups = self.num_groups or GROUPS
            self.num_groups = max(2, min(groups, context.num_images // 2))  # at least two images per group
        if self.variant != "shared":
            self.objective = make_objective(self.base, context, dim)
        if self.variant != "discr":
            self.shared_objective = self.shared_task.objective(context, dim, self.num_groups or 0)
        if self.variant == "both+sep+decor":
            self.regressor = make_regressor(dim, self.hidden)
            if self.gamma is None:
                self.gamma = scaled_weight(GAMMA, dim)
        # The group of each training image, and the average number of classes in a group.
        self.register_buffer("group_of", torch.zeros(context.num_images, dtype=torch.int64))
        self.register_buffer("classes_a_group", torch.zeros(()))

    group_of: Tensor
    classes_a_group: Tensor

    def features_loss(self, pooled: Pooled, batch: Batch, embedder: Embedder, step: int) -> Tensor:
        spaces = embedder.apply_heads(pooled, self.heads(0)).heads
        if self._on_shared(batch.turn):
            space = spaces[SHARED if self.separate else DISCRIMINATIVE]
            loss = self.shared_objective(space, self._groups(batch) if self.triplets == "groups" else batch.labels)
        else:
            loss = self.objective(spaces[DISCRIMINATIVE], batch.labels)
        if not self.gamma or self.variant != "both+sep+decor":
            return loss
        return loss - self.gamma * predicted_correlation(self.regressor, spaces[SHARED], spaces[DISCRIMINATIVE])

    def _on_shared(self, turn: int) -> bool:
        """Whether the batch of a turn trains the shared task."""
        return self.variant == "shared" or turn == 1

    def batch_labels(self, turn: int) -> Tensor | None:
        """Triplets of groups come from batches composed by group, so that every anchor has a positive."""
        return self.group_of if self.triplets == "groups" and self._on_shared(turn) else None

    def _groups(self, batch: Batch) -> Tensor:
        places = torch.from_numpy(batch.indices)
        if self.group_of.is_cuda:  # pinned memory lets the copy happen without waiting for it
            places = places.pin_memory().to(self.group_of.device, non_blocking=True)
        return self.group_of[places]

    def on_epoch_start(self, epoch: int, embedder: Embedder, features: Callable[[], tuple[Pooled, Tensor]]) -> None:
        if self.triplets != "groups" or self.variant == "discr" or epoch % self.regroup_every:
            return
        assert self.context.cluster is not None
        assert self.num_groups is not None
        pooled, labels = features()
        rows = standardised(pooled.avg, labels) if self.standardise else pooled.avg
        groups = self.context.cluster(rows, self.num_groups)
        if (groups == groups[0]).all():
            raise OodmlError(
                "k-means finds one group only: within each class the features of all images are equal. The network has "
                "collapsed: lower the learning rate, or use triplets='shared', which needs no groups."
            )
        self.group_of.copy_(groups)
        self.classes_a_group.copy_(classes_per_group(self.group_of, labels))

    def test_embedding(self, outputs: Outputs) -> Tensor:
        halves = [F.normalize(each, dim=-1) for each in self._spaces(outputs).values()]
        return F.normalize(torch.cat(halves, dim=-1), dim=-1)

    def _spaces(self, outputs: Outputs) -> dict[str, Tensor]:
        return {name: outputs.heads[name] for name in ([DISCRIMINATIVE, SHARED] if self.separate else [DISCRIMINATIVE])}

    def watched(self, outputs: Outputs) -> dict[str, Tensor]:
        """φ and φ*, each on its own (figure 6)."""
        if not self.separate:
            return {}
        return {name: F.normalize(each, dim=-1) for name, each in self._spaces(outputs).items()}

    def facts(self) -> dict[str, float]:
        """The average number of classes in a group (figure 4)."""
        grouped = self.triplets == "groups" and self.variant != "discr"
        return {"classes_per_group": self.classes_a_group.item()} if grouped else {}

    def param_groups(self, base_lr: float) -> list[dict[str, Any]]:
        """The losses' own parameters at their rates, the regressor at the base rate."""
        groups = [] if self.variant == "shared" else own_groups(self.objective, base_lr)
        groups += [] if self.variant == "discr" else own_groups(self.shared_objective, base_lr)
        if self.variant == "both+sep+decor":
            groups.append({"params": list(self.regressor.parameters()), "lr": base_lr, "weight_decay": 0.0})
        return groups


def standardised(features: Tensor, labels: Tensor) -> Tensor:
    """(f − μ_c) / σ_c by dimension, within each class c, which removes what depends on the class; (n, D) -> (n, D).

    A dimension that does not vary within a class is 0 there.
    """
    count = int(labels.max()) + 1
    sizes = torch.bincount(labels, minlength=count).clamp_min(1)[:, None]
    zeros = features.new_zeros(count, features.shape[1])
    centred = features - (zeros.index_add(0, labels, features) / sizes)[labels]
    spread = (zeros.index_add(0, labels, centred.square()) / sizes).sqrt()
    return centred / spread.clamp_min(1e-6 * features.abs().amax().clamp_min(1e-12))[labels]


def classes_per_group(groups: Tensor, labels: Tensor) -> Tensor:
    """The average number of different classes in a group that has members (Sharing Matters, figure 4), a scalar."""
    pairs = torch.unique(torch.stack([groups, labels]), dim=1)
    return torch.tensor(pairs.shape[1] / len(pairs[0].unique()))
