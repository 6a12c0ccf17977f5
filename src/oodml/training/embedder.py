"""The network of a run: as it starts, and as it is used after training (images in, embeddings out)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor, nn

from oodml._errors import OodmlError
from oodml._machine import pick_device
from oodml.config import RunConfig
from oodml.config.protocol import with_numbers_of
from oodml.data import Transforms, view_one
from oodml.methods import Context, Method, make_method
from oodml.models import Backbone, make_backbone
from oodml.models.embedder import Embedder
from oodml.training.data import resized
from oodml.training.seeds import child_seed

ImageLike = Image.Image | np.ndarray | Tensor | str | Path


def initial_backbone(config: RunConfig, load_weights: bool = True) -> Backbone:
    """The backbone a run starts from; `load_weights=False` where its weights are replaced at once."""
    pretrained, weights = (config.pretrained, config.weights) if load_weights else (False, None)
    return make_backbone(config.backbone or "tiny", pretrained, weights, seed=child_seed(config.seed, "backbone"))


def starting_backbone(config: RunConfig) -> Backbone:
    """`initial_backbone`, checked against the settings; needs no data, so it is done before any is read."""
    backbone = initial_backbone(config)
    normalised = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in backbone.modules())
    if config.grad_cache and normalised and not freezes_batchnorm(config, backbone):
        raise OodmlError(
            "grad_cache computes the batch in chunks, which changes the statistics of trained batch-norm: use "
            "frozen_bn=True with it."
        )
    return backbone


def freezes_batchnorm(config: RunConfig, backbone: Backbone) -> bool:
    """As the settings say; by default, where the statistics of batch-norm are pretrained."""
    return backbone.pretrained if config.frozen_bn is None else config.frozen_bn


class TrainedEmbedder:
    """Called with one image or a list of them: PIL images, paths, arrays (h, w, 3) or tensors (3, h, w).

    Integer arrays hold 0..255, floating ones 0..1, rounded to whole grey levels as files have them; a tensor
    (n, 3, h, w) is n images. Each image gets the evaluation view with which the run was scored: short side resized,
    centre cut. Returns (n, d) float32 on the CPU, or (d,) for one image.
    """

    def __init__(self, embedder: Embedder, method: Method, transforms: Mapping[str, int], device: torch.device) -> None:
        self.embedder, self.method, self.device = embedder.to(device).eval(), method, device
        self.size, self.short_side, self.input = (transforms[key] for key in ("size", "short_side", "input"))
        self._transforms = Transforms(size=self.size, short_side=self.short_side)

    @property
    def dim(self) -> int:
        return self.method.context.embedding_dim

    def __call__(self, images: ImageLike | Sequence[ImageLike], batch_size: int = 64) -> Tensor:
        if isinstance(images, Tensor | np.ndarray) and images.ndim == 4:
            images = list(images)
        if isinstance(images, Image.Image | np.ndarray | Tensor | str | Path):
            return self.embed(self.prepare(images)[None])[0]
        if not images:
            return torch.empty(0, self.dim)
        parts = [images[i : i + batch_size] for i in range(0, len(images), batch_size)]
        return torch.cat([self.embed(torch.stack([self.prepare(image) for image in part])) for part in parts])

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """Prepared images (n, 3, side, side) in [0, 1] to embeddings (n, d)."""
        images = resized(images.to(self.device), self.input)
        return self.method.test_embedding(self.embedder(images)).float().cpu()

    def prepare(self, image: ImageLike) -> Tensor:
        """An image as the run sees it: (3, side, side) float32 in [0, 1]."""
        if not isinstance(image, str | Path):
            return view_one(_as_pil(image), self._transforms, self.input)
        try:
            return view_one(image, self._transforms, self.input)
        except Exception as error:  # Pillow raises many kinds for a broken file
            raise OodmlError(f"{image} cannot be read as an image ({error}).") from error


def load_embedder(run: str | Path, device: str = "cpu") -> TrainedEmbedder:
    """The embedder of a finished run: the selected epoch, test-time heads only."""
    folder, chosen = Path(run), pick_device(device)
    file = folder / "embedder.safetensors"
    if not folder.is_dir():
        raise OodmlError(f"There is no folder {folder}: give the folder of a finished run.")
    if not file.exists():
        is_study = (folder / "runs").is_dir()
        remedy = f"give one of the study's runs, {folder / 'runs'}/…" if is_study else "train it to the end first"
        raise OodmlError(f"{folder} holds no trained embedder (no {file.name}): {remedy}.")
    config = RunConfig.of_run(folder)
    with safe_open(file, framework="pt") as saved:
        about = {key: json.loads(value) for key, value in saved.metadata().items()}
        weights = {key: saved.get_tensor(key) for key in saved.keys()}  # noqa: SIM118 - safetensors is not a dict
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
    backbone = initial_backbone(config, load_weights=not whole)
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


def _as_pil(image: Image.Image | np.ndarray | Tensor) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, np.ndarray):
        if image.ndim != 3 or image.shape[2] != 3:
            raise OodmlError(f"An array must be (height, width, 3), got {image.shape}; a tensor (3, height, width).")
        image = torch.from_numpy(image.copy()).permute(2, 0, 1)
    if not isinstance(image, Tensor) or image.ndim != 3 or image.shape[0] != 3:
        given = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise OodmlError(f"An image is a path, a PIL image, an array (h, w, 3) or a tensor (3, h, w), got {given}.")
    if not torch.isfinite(image).all():
        raise OodmlError("An image holds numbers that are not finite: give 0..1 as floating numbers, or 0..255.")
    levels = (image.float() * 255).round() if image.is_floating_point() else image.long()
    pixels = levels.clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
    return Image.fromarray(pixels.cpu().contiguous().numpy())
