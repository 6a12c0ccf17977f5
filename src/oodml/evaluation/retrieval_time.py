"""What the size of an embedding costs at search time (S2SD, table 3)."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from oodml._machine import pick_device
from oodml.evaluation.neighbours import find_neighbours

DIMENSIONS = (32, 64, 128, 256, 512, 1024, 2048)


def retrieval_seconds(
    dims: Sequence[int] = DIMENSIONS, images: int = 250_000, device: str = "cpu", repeats: int = 3, seed: int = 0
) -> dict[int, float]:
    """Seconds to find the nearest neighbour of each of `images` random embeddings, by size; best of `repeats`.

    The paper searches 250,000 embeddings with faiss on a GPU of 2017; here it is oodml's own exact search.
    """
    found, place = {}, pick_device(device)
    for dim in dims:
        generator = torch.Generator().manual_seed(seed)
        embeddings = torch.nn.functional.normalize(torch.randn(images, dim, generator=generator), dim=-1).to(place)
        find_neighbours(embeddings[:1000], k=1)  # the first search pays for starting up
        found[dim] = min(_timed(embeddings) for _ in range(repeats))
    return found


def _timed(embeddings: torch.Tensor) -> float:
    began = time.perf_counter()
    find_neighbours(embeddings, k=1)
    if embeddings.is_cuda:
        torch.cuda.synchronize(embeddings.device)
    return time.perf_counter() - began
