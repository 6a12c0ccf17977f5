"""Scores of an encoder that is not trained here: from its vectors to one row per split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oodml._errors import OodmlError, unknown_name
from oodml._split import Split
from oodml.data import Dataset
from oodml.evaluation import evaluate

WHITENED = "whitened"
FORMS = ("normalised", "raw", WHITENED)

Encoder = Callable[[np.ndarray], Any]  # positions of images in a dataset -> their vectors (n, d), array or tensor


@dataclass(frozen=True)
class EncoderScore:
    """One encoder on one split in one form: `scores` of the test classes, fractions.

    `kind`: "untrained" for the backbone of a run before training, "external" for what was trained elsewhere.
    """

    backbone: str
    split: str
    fid: float | None
    form: str
    dim: int
    scores: dict[str, float]
    kind: str = "external"


def score_encoder(
    encoder: Encoder | Mapping[str, Any],
    dataset: Dataset,
    splits: Sequence[Split],
    metrics: Sequence[str] | None = None,
    match: tuple[int, int] | None = None,
    *,
    label: str,
    kind: str = "external",
    forms: Sequence[str] = ("raw",),
    components: int | None = None,
) -> list[EncoderScore]:
    """Score an encoder on the test classes of every split: one row per split and form.

    Published encoders (`oodml.evaluate_pretrained`), the untrained scores of a run, those of transfer and a user's own
    vectors all become rows here.

    Args:
        encoder: a function that gives the vectors (n, d) of the images at these positions of `dataset` (for features
            of the whole dataset in an array: `features.__getitem__`), or the vectors of the test images of each split
            by the split's name, in the order of the dataset.
        metrics, match: as of `oodml.evaluate`.
        label: the name of the encoder in the rows.
        forms: "normalised" (divided by its norm: cosine search), "raw" (Euclidean, as the encoder gives it), "whitened"
            (PCA whitening with statistics of the split's train classes alone, then normalised). `components`:
            directions kept by whitening; None: all with variance.
    """
    if not callable(encoder) and WHITENED in forms:
        raise OodmlError("Whitening needs the vectors of the train classes too: give a function as encoder.")

    def vectors_of(split: Split, classes: list[str]) -> Any:
        return encoder(dataset.indices_of(classes)) if callable(encoder) else encoder[split.name]

    rows = []
    for split in splits:
        vectors, labels = vectors_of(split, split.test), dataset.labels[dataset.indices_of(split.test)]
        for form in forms:
            train = vectors_of(split, split.train) if form == WHITENED else None
            shown = in_form(vectors, form, train, components)
            found = evaluate(shown, labels, metrics, match=match)
            scores = {name: float(value) for name, value in found.items()}
            rows.append(EncoderScore(label, split.name, split.fid, form, shown.shape[1], scores, kind))
    return rows


def in_form(vectors: Any, form: str, train: np.ndarray | None = None, components: int | None = None) -> Any:
    """Vectors in one of `FORMS`, ready for Euclidean search; whitening is fitted to the vectors `train`."""
    if form == "raw":
        return vectors
    if train is not None and form == WHITENED:
        vectors = fit_whitening(train, components)(vectors)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)


@dataclass(frozen=True)
class Whitening:
    """x ↦ (x − mean) · directions: uncorrelated, variance one on the images it was fitted to."""

    mean: np.ndarray
    directions: np.ndarray  # (D, k)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        return ((features - self.mean) @ self.directions).astype(np.float32)


def fit_whitening(features: np.ndarray, components: int | None = None, floor: float = 1e-6) -> Whitening:
    """PCA whitening of (n, D) features: Σ = U diag(λ) Uᵀ, directions U diag(λ)^−½ of the largest `components`.

    Directions whose variance is below `floor` of the largest are left out: dividing by it would only amplify noise.
    """
    _check_components(components)
    x = np.asarray(features, dtype=np.float64)
    if len(x) < 2:
        raise OodmlError(f"Whitening needs at least two images, got {len(x)}.")
    mean = x.mean(0)
    values, vectors = np.linalg.eigh(np.cov(x, rowvar=False, bias=True))
    order = np.argsort(-values)[: int((values > floor * values.max()).sum())][:components]
    return Whitening(mean, vectors[:, order] / np.sqrt(values[order]))


def check_forms(forms: Sequence[str], components: int | None = None) -> None:
    for form in forms:
        if form not in FORMS:
            raise unknown_name("form of features", form, FORMS)
    if components is not None and WHITENED not in forms:
        raise OodmlError(
            f"components={components} is the number of directions that whitening keeps, and nothing is whitened here "
            f"({', '.join(forms)}): ask for the form {WHITENED!r} too, or leave components out."
        )
    _check_components(components)


def _check_components(components: int | None) -> None:
    if components is not None and components < 1:
        raise OodmlError(f"Whitening keeps at least one direction, got components={components}.")
