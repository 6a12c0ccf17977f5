"""Fine-tuning the last layers of one embedder to several small sets at once.

Every set (an episode's support images) has its own copy of the layers; all copies are stacked, so one step of all
episodes is one batched product, one batched loss and one optimiser step. Each episode has its own batches, draws and
gradient, so its result is the same as if it were computed alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from oodml._errors import OodmlError
from oodml._progress import stage
from oodml._sampling import choose_at
from oodml._tensors import EPSILON, root
from oodml.data import make_batch_sampler
from oodml.methods import Method
from oodml.miners.distance import distance_weights
from oodml.models.embedder import Embedder
from oodml.training.seeds import child_seed, reseed

LOWER, UPPER = 0.5, 1.4  # of distance mining, as in `oodml.miners.distance`
MARGIN = 0.2
Parameters = dict[str, Tensor]


class Support(NamedTuple):
    """The support set of one episode: positions in the dataset, and labels 0 .. classes - 1."""

    positions: np.ndarray
    labels: np.ndarray


class Draws(NamedTuple):
    """Everything random in the fine-tuning of E episodes for T steps, drawn before it starts."""

    positions: np.ndarray  # (T, E, b) of the images in the dataset
    labels: Tensor  # (T, E, b)
    uniforms: Tensor  # (T, E, 2b) float64 in [0, 1): the miner's choice of a positive and of a negative

    @property
    def steps(self) -> int:
        return len(self.labels)


def draw(supports: list[Support], steps: int, batch_size: int, seeds: list[int], device: torch.device) -> Draws:
    """Batches of two images per class (SPC-2 for any number of shots, as published) and the miner's random numbers.

    A batch is never larger than the support set, so that it need not hold an image twice.
    """
    positions, labels, uniforms = [], [], []
    for support, seed in zip(supports, seeds, strict=True):
        size = min(batch_size, len(support.labels)) // 2 * 2
        sampler = make_batch_sampler("spc", support.labels, batch_size=size, samples_per_class=2)
        rng = np.random.default_rng(child_seed(seed, "batches"))
        rows = np.stack([sampler.draw(rng) for _ in range(steps)])
        positions.append(support.positions[rows])
        labels.append(support.labels[rows])
        generator = reseed(torch.Generator(), seed, "mining")
        uniforms.append(torch.rand(steps, 2 * size, dtype=torch.float64, generator=generator))
    return Draws(
        np.stack(positions, 1), torch.from_numpy(np.stack(labels, 1)).to(device), torch.stack(uniforms, 1).to(device)
    )


def last_layers(embedder: Embedder) -> Parameters:
    """The weights of the last linear layer of every head, by their names in the embedder."""
    found: Parameters = {}
    for name, head in embedder.heads.items():
        linears = [(key, layer) for key, layer in head.named_modules() if isinstance(layer, nn.Linear)]
        if linears:
            key, layer = linears[-1]
            prefix = ".".join(part for part in ("heads", name, key) if part)
            found |= {f"{prefix}.{which}": value.detach() for which, value in layer.named_parameters()}
    if not found:
        raise OodmlError("This embedder has no linear layer to fine-tune: its embedding is the pooled features.")
    return found


def stacked_embedding(embedder: Embedder, method: Method) -> Callable[[Parameters, Tensor], Tensor]:
    """`(stacked parameters (E, …), inputs (E, n, D)) -> test embeddings (E, n, d)`: one set of layers each."""

    def one(parameters: Parameters, inputs: Tensor) -> Tensor:
        return method.test_embedding(functional_call(embedder, parameters, (inputs,)))

    return vmap(one)


def margin_losses(embeddings: Tensor, labels: Tensor, uniforms: Tensor, beta: float) -> Tensor:
    """Margin loss with distance mining of every episode, (E, b, d), (E, b), (E, 2b) -> (E,).

    Σ [d(a,p) − β + 0.2]₊ + [β − d(a,n) + 0.2]₊ over one mined triplet per anchor, divided by the active terms, as in
    `oodml.losses.margin` with `learn_beta=False`; `uniforms` are the miner's random numbers.
    """
    unit = F.normalize(embeddings, dim=-1)
    positive, negative, found = _mined(unit.detach(), labels, uniforms)
    near, far = (_distances(unit, partner) for partner in (positive, negative))
    pull = torch.where(found, torch.relu(near - beta + MARGIN), 0.0)
    push = torch.where(found, torch.relu(beta + MARGIN - far), 0.0)
    active = (pull > 0).sum(1) + (push > 0).sum(1)
    return (pull.sum(1) + push.sum(1)) / active.clamp_min(1)


@torch.no_grad()
def _mined(unit: Tensor, labels: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A positive and a negative of every anchor, and whether it has both, (E, b) each.

    The miner's own functions get the rows of all episodes' distance matrices as one list.
    """
    episodes, b, dim = unit.shape
    products = unit @ unit.mT
    norms = products.diagonal(dim1=1, dim2=2)
    distances = root(norms[:, :, None] + norms[:, None, :] - 2 * products).view(-1, b)
    same = labels[:, :, None] == labels[:, None, :]
    negatives = distance_weights(distances, same.view(-1, b), dim, LOWER, UPPER)
    positives = same & ~torch.eye(b, dtype=torch.bool, device=unit.device)
    points = uniforms.view(episodes, 2, b).transpose(0, 1).reshape(-1)
    columns, found = choose_at(torch.cat([positives.view(-1, b), negatives]), points)
    positive, negative = columns.view(2, episodes, b)
    return positive, negative, found.view(2, episodes, b).all(0)


def _distances(unit: Tensor, partner: Tensor) -> Tensor:
    """‖x_i − x_partner(i)‖, at least √ε, (E, b, d), (E, b) -> (E, b)."""
    others = unit.gather(1, partner[:, :, None].expand_as(unit))
    return torch.linalg.vector_norm(unit - others, dim=-1).clamp_min(math.sqrt(EPSILON))


def fine_tune(
    embed: Callable[[Parameters, Tensor], Tensor],
    start: Parameters,
    inputs: Callable[[int], Tensor],
    draws: Draws,
    beta: float,
    lr: float,
    stops: Sequence[int] = (),
    quiet: bool = True,
) -> Iterator[tuple[int, Parameters]]:
    """The layers, stacked (E, …), after each number of steps in `stops` (ascending; none: after the last step).

    `inputs(step)` is what the heads read, (E, b, D). `start` is not changed. Adam without weight decay. Fine-tuning
    ends when no further number of steps is taken from the iterator.
    """
    episodes, wanted = draws.labels.shape[1], list(stops) or [draws.steps]
    # Matrices are stored transposed, (E, D, d), the layout in which the product computes their gradients.
    leaves = [_transposed(value).repeat(episodes, *(1,) * value.ndim) for value in start.values()]
    optimiser = torch.optim.Adam([leaf.requires_grad_() for leaf in leaves], lr=lr, fused=True)
    with stage(f"Adapting ({episodes} episodes, rate {lr:g})", wanted[-1], quiet) as advance:
        for step in range(wanted[-1]):
            layers = {name: _transposed(leaf, 1) for name, leaf in zip(start, leaves, strict=True)}
            embeddings = embed(layers, inputs(step))
            # The sum: each episode's gradient is that of its own loss, since no two episodes share a layer.
            margin_losses(embeddings, draws.labels[step], draws.uniforms[step], beta).sum().backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            advance(1)
            if step + 1 in wanted:
                yield step + 1, _finished(start, leaves, lr)


def _finished(start: Parameters, leaves: list[Tensor], lr: float) -> Parameters:
    """The fine-tuned layers in the form of `start`, as copies."""
    if not all(bool(torch.isfinite(leaf).all()) for leaf in leaves):
        raise OodmlError(f"The fine-tuned layers are no longer finite: lower the learning rate, which was {lr:g}.")
    return {name: _transposed(leaf.detach().clone(), 1) for name, leaf in zip(start, leaves, strict=True)}


def _transposed(value: Tensor, leading: int = 0) -> Tensor:
    """A matrix (behind `leading` dimensions) transposed, a vector as it is."""
    return value.mT if value.ndim == 2 + leading else value
