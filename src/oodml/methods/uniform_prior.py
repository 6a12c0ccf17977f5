"""Uniform prior: features that a discriminator cannot distinguish from uniform noise (Sinha et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodml._errors import OodmlError, unknown_name
from oodml.methods.base import Batch, Context
from oodml.methods.objective import Spec
from oodml.methods.registry import register_method
from oodml.methods.wrapper import Wrapper
from oodml.models.embedder import Embedder, Pooled

PLACES = ("features", "embedding")


def generator_loss(judged: Tensor) -> Tensor:
    """Mean −log D(x), the binary cross-entropy of logits `judged` (n,) with "uniform": what the features minimise."""
    return F.softplus(-judged).mean()


def discriminator_loss(uniform: Tensor, judged: Tensor) -> Tensor:
    """Mean −log D(z) plus mean −log(1 − D(x)) of logits (n,) each: what the discriminator minimises."""
    return F.softplus(-uniform).mean() + F.softplus(judged).mean()


@register_method(
    "uniform_prior",
    paper="Sinha et al. 2020, Uniform Priors for Data-Efficient Transfer",
    search={"weight": (0.01, 1.0)},
    revision=2,
)
class UniformPrior(Wrapper):
    """Any method, with a discriminator that trains its features to be uniform, so that they keep more than the classes.

        L = L_base + weight · mean −log D(x)

    D is an MLP row-hidden-hidden-1 with ReLU, trained every `every` steps by Adam(0.5, 0.999) at the run's base rate
    (`lr` for another) to distinguish features x from z ~ U(−1, 1). The features, of any size, are cut into rows of
    `row` numbers (of the largest divisor of their size below it), each an input of D.

    `on="features"`: the pooled, unnormalised features, as in the code behind ooDML (the default with train="all");
    `on="embedding"`: the heads' outputs before normalisation (with train="head", where the features are fixed).
    weight, every and hidden are those of that code on CUB and CARS; on SOP it has 0.02, 200 and 50.
    """

    def __init__(
        self,
        base: Spec = "margin",
        weight: float = 0.2,
        every: int = 10,
        hidden: int = 100,
        on: str | None = None,
        row: int = 128,
        lr: float | None = None,
    ) -> None:
        super().__init__(base)
        if on is not None and on not in PLACES:
            raise unknown_name("value of uniform_prior's on:", on, PLACES)
        if (
            weight < 0
            or not all(isinstance(n, int) and n >= 1 for n in (row, every, hidden))
            or (lr is not None and lr <= 0)
        ):
            raise OodmlError(
                f"uniform_prior needs weight >= 0, lr > 0, and whole numbers >= 1 as row, every and hidden; got "
                f"{weight=}, {lr=}, {row=}, {every=}, {hidden=}."
            )
        self.weight, self.every, self.hidden = weight, every, hidden
        self.on, self.row, self.lr = on, row, lr
        self.seen: Tensor | None = None

    def describe(self) -> str:
        return "The method 'uniform_prior'"

    def check(self, embedding_dim: int, train: str) -> None:
        super().check(embedding_dim, train)
        if train == "head" and self.on == "features":
            raise OodmlError("With train='head' the features are fixed: use on='embedding'.")

    def setup(self, context: Context) -> None:
        super().setup(context)
        self.on = self.on or ("features" if context.train == "all" else "embedding")
        size = context.feature_dim if self.on == "features" else context.embedding_dim
        self.width = max(n for n in range(1, min(self.row, size) + 1) if size % n == 0)
        hidden = self.hidden
        layers = [nn.Linear(self.width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)]
        self.discriminator = nn.Sequential(*layers)
        self.optimiser = torch.optim.Adam(self.discriminator.parameters(), lr=self.lr or context.lr, betas=(0.5, 0.999))

    def features_loss(self, pooled: Pooled, batch: Batch, embedder: Embedder, step: int) -> Tensor:
        rows = self.rows(pooled, embedder)
        self.seen = rows.detach()
        prior = generator_loss(self.discriminator(rows)[:, 0])
        return super().features_loss(pooled, batch, embedder, step) + self.weight * prior

    def rows(self, pooled: Pooled, embedder: Embedder) -> Tensor:
        """The rows that the discriminator is given, (n, width)."""
        if self.on == "features":
            return pooled.avg.reshape(-1, self.width)
        kept = [name for name, head in embedder.specs.items() if head.test]
        return torch.cat(list(embedder.apply_heads(pooled, kept).heads.values()), dim=1).reshape(-1, self.width)

    def extra_optimisers(self) -> list[torch.optim.Optimizer]:
        return [*super().extra_optimisers(), self.optimiser]

    def after_step(self, embedder: Embedder, step: int) -> None:
        super().after_step(embedder, step)
        self.optimiser.zero_grad(set_to_none=True)  # the loss of the features has added gradients here
        if step % self.every or self.seen is None:
            return
        noise = torch.empty_like(self.seen).uniform_(-1, 1, generator=self.context.generator)
        discriminator_loss(self.discriminator(noise)[:, 0], self.discriminator(self.seen)[:, 0]).backward()
        self.optimiser.step()
