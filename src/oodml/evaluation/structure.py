"""The structure of an embedding space: density, spectral decay, uniformity, alignment.

`pi_intra`, `pi_inter`, `pi_ratio` and `rho` are the measures of Roth et al. (2020), "Revisiting training strategies
and generalization performance in deep metric learning"; `uniformity` and `alignment` those of Wang & Isola (2020).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from oodml._errors import OodmlError, unknown_name
from oodml.evaluation._inputs import as_tensors
from oodml.evaluation.scores import Scores
from oodml.evaluation.spectrum import Direction, class_blocks, class_spectra, class_sums, spectral_decay, spectrum

METRICS = ("pi_intra", "pi_inter", "pi_ratio", "rho", "uniformity", "alignment")
Metric = Literal["euclidean", "cosine"]
_CELLS = 1 << 22  # distances held at once on a CPU; 16 times that on a GPU


class _Set(NamedTuple):
    x: Tensor
    ids: Tensor
    sizes: Tensor
    metric: str


def structure(
    embeddings: Any,
    labels: Any,
    metrics: str | Sequence[str] | None = None,
    *,
    metric: Metric = "euclidean",
    normalise: bool = False,
    drop: int = 0,
    centre: bool = False,
    direction: Direction = "uniform",
    per_class: bool = False,
) -> Scores:
    """Density, spectral decay, uniformity and alignment of labelled embeddings.

    - `pi_intra`: mean distance between two images of one class, averaged over classes with two images or more.
    - `pi_inter`: mean distance of two class centres (means of the embeddings as given).
    - `pi_ratio`: pi_intra / pi_inter; the papers find that higher (less compressed classes) comes with better transfer.
    - `rho`: spectral decay KL(U ‖ singular values); see `oodml.evaluation.spectrum`.
    - `uniformity`: log of the mean over pairs of exp(−2‖x−y‖²); `alignment`: mean over pairs of one class of ‖x−y‖².
      Both are defined on the unit sphere and always computed on L2-normalised embeddings.

    Args:
        embeddings: (N, d) array or tensor on any device.
        labels: N labels of any kind.
        metrics: which of the above; all by default.
        metric: distance of the π measures: "euclidean" as printed in the paper, "cosine" (1 − cos) as in its code.
        normalise: divide each embedding by its norm before everything.
        drop, centre, direction: of `rho`: leading singular values left out, mean subtracted, which KL divergence.
        per_class: add `rho_class`, the mean of ρ over the classes' own singular values (supplement E).

    Returns:
        A dict of floats with `.notes` on what was left out. Values that are undefined for the set (no class with two
        images, a single class) are NaN, with a warning and a note.
    """
    x, ids, _ = as_tensors(embeddings, labels)
    if metric not in ("euclidean", "cosine"):
        raise unknown_name("metric of structure", metric, ("euclidean", "cosine"))
    names = _checked_names(metrics)
    data = _Set(F.normalize(x, dim=1) if normalise else x, ids, torch.bincount(ids), metric)
    needed = [*names, *(("pi_intra", "pi_inter") if "pi_ratio" in names else ())]
    values = {name: compute(data) for name, compute in _MEASURES.items() if name in needed}
    if "pi_ratio" in names:
        values["pi_ratio"] = _ratio(values["pi_intra"], values["pi_inter"])
    if "rho" in names:
        values["rho"] = float(spectral_decay(spectrum(data.x, centre), drop, direction))
    if per_class:
        values["rho_class"] = _class_decay(data, drop, centre, direction)
    values = {name: values[name] for name in (*names, *(("rho_class",) if per_class else ()))}
    return Scores(values, notes=_notes(values, data.sizes))


def _checked_names(metrics: str | Sequence[str] | None) -> tuple[str, ...]:
    names = METRICS if metrics is None else (metrics,) if isinstance(metrics, str) else tuple(metrics)
    for name in names:
        if name not in METRICS:
            raise unknown_name("structure metric", name, METRICS)
    return names


def _pi_intra(data: _Set) -> float:
    several = data.sizes > 1
    pairs = (data.sizes * (data.sizes - 1)).double()
    if data.metric == "cosine":  # Σ over pairs of cosines = ‖Σ x̂‖² − Σ ‖x̂‖², no pair is ever formed
        unit = F.normalize(data.x.double(), dim=1)
        own = class_sums(unit.square().sum(dim=1, keepdim=True), data.ids, len(pairs)).flatten()
        total = pairs - class_sums(unit, data.ids, len(pairs)).square().sum(dim=1) + own
    else:
        total = _sums_of_distances_in_classes(data)
    return float((total / pairs).clamp(min=0)[several].mean())


def _sums_of_distances_in_classes(data: _Set) -> Tensor:
    """(C,) sum of Euclidean distances over ordered pairs of each class."""
    sums = torch.zeros(len(data.sizes), dtype=torch.float64, device=data.x.device)
    for block in class_blocks(data.x, data.ids):
        mean = block.rows.sum(dim=1, keepdim=True) / block.real.sum(dim=1)[:, None, None]
        rows = (block.rows - mean) * block.real[..., None]  # small numbers lose less in the squares of cdist
        total = torch.zeros_like(sums[block.classes])
        step = max(1, _cells(rows) // (rows.shape[0] * rows.shape[1]))
        for start in range(0, rows.shape[1], step):
            part = slice(start, start + step)
            distance = torch.cdist(rows[:, part], rows)
            distance.diagonal(offset=start, dim1=1, dim2=2).zero_()
            total += (distance * block.real[:, part, None] * block.real[:, None, :]).sum(dim=(1, 2))
        sums[block.classes] = total
    return sums


def _pi_inter(data: _Set) -> float:
    count = len(data.sizes)
    if count < 2:
        return math.nan
    pairs = count * (count - 1)
    x = F.normalize(data.x.double(), dim=1) if data.metric == "cosine" else data.x
    centres = class_sums(x, data.ids, count) / data.sizes[:, None]
    if data.metric == "cosine":
        centres = F.normalize(centres, dim=1)
        return max(0.0, float(1 - (centres.sum(dim=0).square().sum() - centres.square().sum()) / pairs))
    centres = centres - centres.mean(dim=0)
    total = centres.new_zeros(())
    step = max(1, _cells(centres) // count)
    for start in range(0, count, step):
        distance = torch.cdist(centres[start : start + step], centres)
        distance.diagonal(offset=start).zero_()
        total += distance.sum()
    return float(total / pairs)


def _uniformity(data: _Set) -> float:
    """log mean over unordered pairs of exp(−2‖x−y‖²) = exp(−2(‖x‖² + ‖y‖² − 2x·y)), upper triangle of tiles."""
    n = len(data.x)
    if n < 2:
        return math.nan
    unit = F.normalize(data.x, dim=1)
    bias = -2 * unit.square().sum(dim=1)  # −2, or 0 for a zero row
    side = math.isqrt(_cells(unit))
    total = torch.zeros((), dtype=torch.float64, device=unit.device)
    for i in range(0, n, side):
        left, left_bias = unit[i : i + side], bias[i : i + side, None]
        for j in range(i, n, side):
            exponent = torch.addmm(bias[j : j + side], left, unit[j : j + side].T, alpha=4).add_(left_bias)
            kernel = exponent.clamp_(max=0).exp_()
            total += kernel.triu_(1).sum().double() if i == j else kernel.sum().double()
    return float((total / (n * (n - 1) / 2)).log())


def _alignment(data: _Set) -> float:
    """Mean of ‖x−y‖² over pairs of one class; Σ over ordered pairs of a class = 2 n Σ ‖x − mean‖²."""
    pairs = int((data.sizes * (data.sizes - 1)).sum())
    if pairs == 0:
        return math.nan
    unit = F.normalize(data.x.double(), dim=1)
    mean = class_sums(unit, data.ids, len(data.sizes)) / data.sizes[:, None]
    spread = (unit - mean[data.ids]).square().sum(dim=1)
    return float((2 * data.sizes[data.ids] * spread).sum() / pairs)


_MEASURES: dict[str, Callable[[_Set], float]] = {
    "pi_intra": _pi_intra,
    "pi_inter": _pi_inter,
    "uniformity": _uniformity,
    "alignment": _alignment,
}


def _ratio(intra: float, inter: float) -> float:
    if inter < 1e-12:  # centres coincide up to rounding
        return math.inf if intra > 0 else math.nan
    return intra / inter


def _class_decay(data: _Set, drop: int, centre: bool, direction: Direction) -> float:
    values, count = class_spectra(data.x, data.ids, centre)
    enough = count > drop + 1
    if not bool(enough.any()):
        raise OodmlError(f"per_class=True with drop={drop}: no class keeps two singular values; drop fewer.")
    return float(spectral_decay(values[enough], drop, direction, count[enough]).mean())


def _notes(values: dict[str, float], sizes: Tensor) -> dict[str, Any]:
    singletons = int((sizes == 1).sum())
    notes: dict[str, Any] = {"singletons": singletons} if singletons else {}
    undefined = [name for name, value in values.items() if math.isnan(value)]
    if undefined:
        few = "a single class" if len(sizes) == 1 else "no class with two images" if int(sizes.max()) == 1 else None
        reason = "a single image" if int(sizes.sum()) == 1 else few or "all embeddings coincide"
        notes["undefined"] = undefined
        warnings.warn(f"{', '.join(undefined)} undefined for this set ({reason}): NaN.", stacklevel=3)
    return notes


def _cells(x: Tensor) -> int:
    return _CELLS if x.device.type == "cpu" else 16 * _CELLS
