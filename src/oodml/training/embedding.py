"""A trained embedder, for use after training: images in, embeddings out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor

from oodml._errors import OodmlError
from oodml._machine import pick_device
from oodml.config import RunConfig, as_split
from oodml.config.protocol import with_numbers_of
from oodml.data import Dataset, Transforms, load_dataset, load_images, view_one
from oodml.evaluation import evaluate
from oodml.methods import Context, Method, make_method
from oodml.models import Backbone
from oodml.models.embedder import Embedder
from oodml.training.distributed import Processes
from oodml.training.initial import initial_backbone
from oodml.training.result import load_result
from oodml.training.scoring import embed
from oodml.training.sets import choose_sets, choose_split
from oodml.training.sources import ImageSource, resized

Picture = Image.Image | np.ndarray | Tensor | str | Path


class TrainedEmbedder:
    """Called with one picture or a list of them: PIL images, paths, arrays (h, w, 3) or tensors (3, h, w).

    Integer arrays hold 0..255, floating ones 0..1, rounded to whole grey levels as files have them; a tensor
    (n, 3, h, w) is n pictures. Each picture gets the evaluation view of the data set the run trained on, the one the
    run itself was scored with: short side resized, centre cut. Gives (n, d) float32 on the CPU; one picture alone
    gives (d,).
    """

    def __init__(self, embedder: Embedder, method: Method, transforms: Mapping[str, int], device: torch.device) -> None:
        self.embedder, self.method, self.device = embedder.to(device).eval(), method, device
        self.size, self.short_side, self.input = (transforms[key] for key in ("size", "short_side", "input"))
        self._transforms = Transforms(size=self.size, short_side=self.short_side)

    @property
    def dim(self) -> int:
        return self.method.context.embedding_dim

    def __call__(self, pictures: Picture | Sequence[Picture], batch_size: int = 64) -> Tensor:
        if isinstance(pictures, Tensor | np.ndarray) and pictures.ndim == 4:
            pictures = list(pictures)
        if isinstance(pictures, Image.Image | np.ndarray | Tensor | str | Path):
            return self.embed(self.prepare(pictures)[None])[0]
        if not pictures:
            return torch.empty(0, self.dim)
        parts = [pictures[i : i + batch_size] for i in range(0, len(pictures), batch_size)]
        return torch.cat([self.embed(torch.stack([self.prepare(p) for p in part])) for part in parts])

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """Prepared images (n, 3, side, side) in [0, 1] to embeddings (n, d)."""
        images = resized(images.to(self.device), self.input)
        return self.method.test_embedding(self.embedder(images)).float().cpu()

    def prepare(self, picture: Picture) -> Tensor:
        """Any picture as the run sees it: (3, side, side) float32 in [0, 1]."""
        if not isinstance(picture, str | Path):
            return view_one(_as_image(picture), self._transforms, self.input)
        try:
            return view_one(picture, self._transforms, self.input)
        except Exception as error:  # Pillow raises many kinds for a broken file
            raise OodmlError(f"{picture} cannot be read as an image ({error}).") from error


def load_embedder(run: str | Path, device: str = "cpu") -> TrainedEmbedder:
    """The embedder of a finished run: the selected epoch, test-time heads only."""
    folder, chosen = Path(run), pick_device(device)
    file = folder / "embedder.safetensors"
    if not folder.is_dir():
        raise OodmlError(f"There is no folder {folder}: give the folder of a finished run.")
    if not file.exists():
        is_study = (folder / "runs").is_dir()
        way_out = f"give one of the study's runs, {folder / 'runs'}/…" if is_study else "train it to the end first"
        raise OodmlError(f"{folder} holds no trained embedder (no {file.name}): {way_out}.")
    config = RunConfig.of_run(folder)
    with safe_open(file, framework="pt") as saved:
        about = {key: json.loads(value) for key, value in saved.metadata().items()}
        weights = {key: saved.get_tensor(key) for key in saved.keys()}  # noqa: SIM118 - safetensors is no dict
    trained_on = about["context"].pop("dataset", None)  # only in files of earlier versions
    spec = config.method or "margin"
    method = make_method(spec if trained_on is None else with_numbers_of(spec, trained_on, about["context"]))
    with torch.random.fork_rng(devices=[]):
        method.setup(Context(**about["context"]))
        embedder = _rebuild(config, method, weights, about["weights_id"])
    return TrainedEmbedder(embedder, method, about["transforms"], chosen)


def frozen_embedder(
    run: str | Path, device: str = "cpu", features_of: Backbone | None = None
) -> Callable[[Tensor], Tensor]:
    """The embedder of a finished run for inputs as training has them: prepared images, or cached `features_of`."""
    trained = load_embedder(run, device)
    if features_of is not None and features_of.weights_id != trained.embedder.backbone.weights_id:
        raise OodmlError(
            f"The run {run} has another backbone (or trained its own), and with train='head' its head would be given "
            f"features of {features_of.name!r} as they are here: take a teacher trained with train='head' on the same "
            "backbone, or train='all'."
        )

    @torch.no_grad()
    def embed_inputs(inputs: Tensor) -> Tensor:
        seen = resized(inputs, trained.input) if inputs.ndim == 4 else inputs
        return trained.method.test_embedding(trained.embedder(seen)).float()

    return embed_inputs


def _rebuild(config: RunConfig, method: Method, weights: dict[str, Tensor], weights_id: str) -> Embedder:
    """The embedder with its test-time heads; a backbone that did not train comes from where the run had it."""
    whole = any(key.startswith("backbone.") for key in weights)
    backbone = initial_backbone(config, trained_elsewhere=whole)
    if not whole and backbone.weights_id != weights_id:
        raise OodmlError(
            f"The weights of {backbone.name!r} found here are not those the run's features were computed with. "
            "Give the same weights file, or the same version of their package."
        )
    heads = {name: head for name, head in method.heads(backbone.feature_dim).items() if head.test}
    embedder = Embedder(backbone, heads, backbone.feature_dim)
    missing, unexpected = embedder.load_state_dict(weights, strict=False)
    if unexpected or any(whole or not key.startswith("backbone.") for key in missing):
        raise OodmlError(
            f"The saved embedder does not fit its settings: {len(missing)} tensors are missing and {len(unexpected)} "
            "are not known. It may come from another version of oodml."
        )
    return embedder


def embed_run(
    run: str | Path,
    dataset: str | Mapping[str, Any] | Dataset | None = None,
    split: Any = None,
    device: str = "cpu",
) -> tuple[Tensor, np.ndarray]:
    """Embeddings and labels of the test classes of a data set and split; both default to the finished run's own.

    Another data set without a split is embedded whole: none of its classes were trained on.
    """
    trained = load_embedder(run, device)
    config = RunConfig.of_run(run)
    images = load_images(load_dataset(config.dataset if dataset is None else dataset), trained.device)
    found = images.dataset
    own = dataset is None or _is_own(found, dataset, config, run)
    if split is None and not own:
        indices = np.arange(len(found))
    else:
        chosen = choose_split(found, config.split if split is None else split)
        indices = choose_sets(found, chosen, hold_out=False).test
    _tell_seen(config, found if own else None, [found.classes[label] for label in np.unique(found.labels[indices])])
    source = ImageSource(images, size=trained.input)
    rows = embed(
        trained.embedder, trained.method.test_embedding, source, indices, Processes(device=trained.device), 128
    )
    return rows, found.labels[indices]


def _tell_seen(config: RunConfig, own: Dataset | None, scored: list[str]) -> None:
    """Warn of classes that a run was trained on: by their names, in whatever copy of the pictures they are.

    `own` is the data set of the run, where it is at hand.
    """
    try:
        if config.split == "default":
            split = choose_split(load_dataset(config.dataset) if own is None else own, "default")
        else:
            split = as_split(config.split)
    except OodmlError:  # its own pictures are gone, and with them what the default was
        return
    seen = sorted(set(scored) & set(split.train))
    if seen:
        more = f" and {len(seen) - 3} more" if len(seen) > 3 else ""
        warnings.warn(
            f"{len(seen)} of the {len(scored)} classes were trained on ({', '.join(seen[:3])}{more}): the scores are "
            "not those of unseen classes.",
            stacklevel=3,
        )


def _is_own(found: Dataset, given: str | Mapping[str, Any] | Dataset, config: RunConfig, run: str | Path) -> bool:
    """Whether a data set is the one a run was trained on: a known one by its name, a folder by place or pictures."""
    if found.name != config.dataset_name:
        return False
    if found.name != "folder" or found.fingerprint == load_result(run).data["dataset"]["fingerprint"]:
        return True
    roots = [Path(str(each.get("root"))).resolve() for each in (given, config.dataset) if isinstance(each, Mapping)]
    return len(roots) == 2 and roots[0] == roots[1]


def evaluate_run(
    run: str | Path,
    dataset: str | Mapping[str, Any] | Dataset | None = None,
    split: Any = None,
    metrics: Sequence[str] | None = None,
    device: str = "cpu",
) -> dict[str, float]:
    """Scores of a finished run on the test classes of a data set and split; see `embed_run`."""
    rows, labels = embed_run(run, dataset, split, device)
    return evaluate(rows, labels, metrics)


def _as_image(picture: Image.Image | np.ndarray | Tensor) -> Image.Image:
    if isinstance(picture, Image.Image):
        return picture
    if isinstance(picture, np.ndarray):
        if picture.ndim != 3 or picture.shape[2] != 3:
            raise OodmlError(f"An array must be (height, width, 3), got {picture.shape}; a tensor (3, height, width).")
        picture = torch.from_numpy(picture.copy()).permute(2, 0, 1)
    if not isinstance(picture, Tensor) or picture.ndim != 3 or picture.shape[0] != 3:
        told = tuple(picture.shape) if isinstance(picture, Tensor) else type(picture).__name__
        raise OodmlError(f"A picture is a path, a PIL image, an array (h, w, 3) or a tensor (3, h, w), got {told}.")
    if not torch.isfinite(picture).all():
        raise OodmlError("A picture holds numbers that are not finite: give 0..1 where they are floating, else 0..255.")
    levels = (picture.float() * 255).round() if picture.is_floating_point() else picture.long()
    pixels = levels.clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
    return Image.fromarray(pixels.cpu().contiguous().numpy())


__all__ = ["TrainedEmbedder", "embed_run", "evaluate_run", "load_embedder"]
