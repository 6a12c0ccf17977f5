"""Generic representations: published encoders scored on splits without any training (ooDML, section 4.3, figure 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oodml._errors import OodmlError, unknown_name
from oodml.config import as_split, check_backbone
from oodml.data import Dataset, load_dataset, load_images
from oodml.evaluation import MATCHED, MATCHED_ERROR, check_metrics, evaluate
from oodml.models import Backbone, extract_features, make_backbone
from oodml.models.features import check_weights
from oodml.shift import Split, load_splits
from oodml.training.sets import choose_split

WHITENED = "whitened"
FORMS = ("normalised", "raw", WHITENED)

# What the paper compares, by the names of registered backbones and of timm's hub. SwAV needs its published file.
PUBLISHED = {
    "clip": "clip_vit_b32",
    "bit-21k": "resnetv2_50x1_bit.goog_in21k",
    "bit-1k": "resnetv2_50x1_bit.goog_in21k_ft_in1k",  # the 21k model fine-tuned on 1k, not trained on 1k alone
    "efficientnet-b0": "efficientnet_b0.ra_in1k",
    "resnet50-1k": "resnet50.tv_in1k",
    "dinov2": "vit_small_patch14_dinov2.lvd142m",
    "swav": "swav_resnet50",
}


# What a short name stood for in scores that do not say their backbone; the others have not changed.
_FORMERLY = {"clip": "vit_base_patch32_clip_224.openai"}


def backbone_name(name: str | Backbone) -> str:
    """The full name of an encoder: what a short name of `PUBLISHED` stands for."""
    return name.name if isinstance(name, Backbone) else PUBLISHED.get(name, name)


def scored_by(name: str, held: Mapping[str, Any]) -> bool:
    """Whether scores in a study's folder belong to the encoder that `name` stands for today."""
    current = backbone_name(name)
    return held.get("backbone", _FORMERLY.get(name, current)) == current


@dataclass(frozen=True)
class PretrainedScore:
    """One encoder on one split in one form: `scores` of the test classes, fractions."""

    backbone: str
    split: str
    fid: float | None
    form: str
    dim: int
    scores: dict[str, float]


@dataclass(frozen=True)
class Whitening:
    """x ↦ (x − mean) · directions: uncorrelated, variance one on the images it was fitted to."""

    mean: np.ndarray
    directions: np.ndarray  # (D, k)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        return ((features - self.mean) @ self.directions).astype(np.float32)


def fit_whitening(features: np.ndarray, components: int | None = None, floor: float = 1e-6) -> Whitening:
    """PCA whitening of (n, D) features: Σ = U diag(λ) Uᵀ, directions U diag(λ)^−½ of the largest `components`.

    Directions whose variance is below `floor` of the largest are left out: dividing by it would only raise noise.
    """
    _check_components(components)
    x = np.asarray(features, dtype=np.float64)
    if len(x) < 2:
        raise OodmlError(f"Whitening needs at least two images, got {len(x)}.")
    mean = x.mean(0)
    values, vectors = np.linalg.eigh(np.cov(x, rowvar=False, bias=True))
    order = np.argsort(-values)[: int((values > floor * values.max()).sum())][:components]
    return Whitening(mean, vectors[:, order] / np.sqrt(values[order]))


def evaluate_pretrained(
    dataset: str | Mapping[str, Any] | Dataset,
    splits: Any = "default",
    backbones: Sequence[str | Mapping[str, Any] | Backbone] = ("tf_efficientnet_lite0",),
    *,
    forms: Sequence[str] = ("normalised", "raw"),
    components: int | None = None,
    metrics: Sequence[str] | None = None,
    match: tuple[int, int] | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> list[PretrainedScore]:
    """Score published encoders on the test classes of every split, with no training at all.

    Args:
        dataset: a data set, its name, or a mapping with name and root.
        splits: a split, several, a file of them, or "default".
        backbones: names for `make_backbone` (registered ones and any timm model, hub tag included), short names of
            `PUBLISHED`, mappings {"name", "weights", "label"}, or `Backbone`s.
        forms: "normalised" (divided by its norm: cosine search), "raw" (Euclidean, as the network gives it), "whitened"
            (PCA whitening with statistics of the split's train classes alone, then normalised).
        components: directions kept by whitening; None: all that carry variance.
        metrics, match: as of `oodml.evaluate`.

    Returns:
        One row an encoder, split and form. Features come from the cache that training uses too.
    """
    check_forms(forms, components)
    check_metrics(name for name in metrics or () if name not in (MATCHED, MATCHED_ERROR))
    encoders = encoder_specs(backbones)
    data = load_images(load_dataset(dataset), quiet=quiet).dataset  # without pictures that cannot be read
    chosen = read_splits(data, splits)
    rows = []
    for encoder in encoders:
        label, features = describe(data, device=device, quiet=quiet, **encoder)
        for split in chosen:
            labels = data.labels[data.indices_of(split.test)]
            for form in forms:
                vectors = in_form(features, data, split, form, components)
                scores = evaluate(vectors, labels, metrics, match=match)
                plain = {name: float(value) for name, value in scores.items()}
                rows.append(PretrainedScore(label, split.name, split.fid, form, vectors.shape[1], plain))
    return rows


def in_form(features: np.ndarray, data: Dataset, split: Split, form: str, components: int | None = None) -> np.ndarray:
    """The features of the split's test images in one of `FORMS`, ready for Euclidean search."""
    vectors = features[data.indices_of(split.test)]
    if form == "raw":
        return vectors
    if form == WHITENED:
        vectors = fit_whitening(features[data.indices_of(split.train)], components)(vectors)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)


def check_forms(forms: Sequence[str], components: int | None = None) -> None:
    for form in forms:
        if form not in FORMS:
            raise unknown_name("form of features", form, FORMS)
    if components is not None and WHITENED not in forms:
        raise OodmlError(
            f"components={components} says how many directions whitening keeps, and nothing is whitened here "
            f"({', '.join(forms)}): ask for the form {WHITENED!r} too, or leave components out."
        )
    _check_components(components)


def _check_components(components: int | None) -> None:
    if components is not None and components < 1:
        raise OodmlError(f"Whitening keeps at least one direction, got components={components}.")


def describe(
    data: Dataset,
    name: str | Backbone,
    weights: str | Path | None = None,
    label: str | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> tuple[str, np.ndarray]:
    """The label of an encoder and the features (N, D) of every picture, cached."""
    model = name if isinstance(name, Backbone) else make_backbone(name, weights=weights)
    features = extract_features(data, model, size=input_side(model, data.image_size), device=device, quiet=quiet)
    return label or model.name, features


@torch.no_grad()
def input_side(model: Backbone, wanted: int) -> int | None:
    """None (the data set's own size), or the one size that the network takes: some transformers know no other."""
    if wanted == model.input_size:
        return None
    was_training = model.training
    try:
        model.eval()(torch.zeros(1, 3, max(wanted, 64), max(wanted, 64), device=model.mean.device))
    except (AssertionError, RuntimeError):
        return model.input_size
    finally:
        model.train(was_training)
    return None


def read_splits(data: Dataset, splits: Any) -> list[Split]:
    """Splits from whatever names them, checked against the data set."""
    if isinstance(splits, str | Path) and splits != "default":
        found = list(load_splits(splits))
    elif isinstance(splits, Sequence) and not isinstance(splits, str):
        found = [split for each in splits for split in read_splits(data, each)]
    else:
        found = [choose_split(data, "default") if splits == "default" else as_split(splits)]
    for split in found:
        if split.dataset and split.dataset != data.name:
            raise OodmlError(
                f"Split {split.name!r} is of {split.dataset!r}, and the data set at hand is {data.name!r}."
            )
    return found


def encoder_specs(backbones: Sequence[str | Mapping[str, Any] | Backbone]) -> list[dict[str, Any]]:
    """Every encoder as arguments of `describe`, its name checked before anything is computed."""
    specs = []
    for spec in backbones:
        given: dict[str, Any] = {"name": spec} if isinstance(spec, str | Backbone) else dict(spec)
        if extra := given.keys() - {"name", "weights", "label"}:
            raise unknown_name("key of an encoder", sorted(extra)[0], ("name", "weights", "label"))
        if "name" not in given:
            raise OodmlError(f"An encoder is a name, a Backbone or a mapping with 'name', got {spec!r}.")
        check_weights(given["name"], given.get("weights"))
        if isinstance(given["name"], str):
            if given["name"] in PUBLISHED:
                given = {"label": given["name"], **given, "name": backbone_name(given["name"])}
            check_backbone(given["name"])
        specs.append(given)
    return specs
