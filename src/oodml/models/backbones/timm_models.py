"""Any timm model as a backbone; and timm and torchvision made importable next to a CPU-only torch."""

from __future__ import annotations

import copy
import difflib
import functools
import importlib.util
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oodml._errors import OodmlError
from oodml.models.backbones.base import Backbone, own_seed
from oodml.models.backbones.weights import (
    check_finite,
    find_weights,
    hub_options,
    load_weights,
    read_weights,
    tagged,
    unreachable,
)

_TORCHVISION_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a declaration lasts as long as its Library object


def import_timm() -> Any:
    """timm, with torchvision made importable first."""
    ensure_torchvision()
    import timm

    return timm


def timm_backbone(name: str, pretrained: bool, weights: str | Path | None, seed: int) -> Backbone:
    """Build `name`; weights come from a local file, else from the hub, else (not `pretrained`) from `seed`."""
    path = find_weights(name, weights) if pretrained or weights else None
    body = build(name, seed)
    if path:
        load_weights(body.model, read_weights(path), source=path, drop=classifier_names(body.model))
    elif pretrained:
        load_from_hub(name, body, seed)
    return wrap(name, body, pretrained=pretrained or path is not None)


class FeatureMap(nn.Module):
    """A timm model without classifier whose output always is a map (b, C, h, w).

    Convolutional networks give one; channels-last maps (Swin, …) are transposed. Networks that end in tokens
    (ViT, DeiT, Mixer, …) pool them as they were trained to, by class token or mean, and the result is a 1×1 map:
    average and maximum pooling both return it unchanged.
    """

    model: Any  # timm's models carry attributes of their own

    def __init__(self, model: nn.Module, layout: str, channels: int) -> None:
        super().__init__()
        self.model = model
        self.layout = layout
        self.channels = channels

    def forward(self, images: Tensor) -> Tensor:
        out = self.model(images)
        if self.layout == "nhwc":
            return out.permute(0, 3, 1, 2)
        return out[:, :, None, None] if self.layout == "pooled" else out


def build(name: str, seed: int, outputs: int = 0) -> FeatureMap:
    """The untrained network as a `FeatureMap`: without its classifier, or with a last layer of `outputs` units."""
    try:
        model = _create(name, seed, outputs, global_pool="")
        shape = _output_shape(model)
    except (AssertionError, AttributeError, TypeError):  # raised by models of timm whose pooling cannot be left out
        shape = ()
    if len(shape) != 4:
        model = _create(name, seed, outputs)
        channels = _output_shape(model)[1]
        if channels == 0:
            raise OodmlError(f"timm's {name!r} cannot be a backbone: without its classifier it gives no features.")
        return FeatureMap(model, "pooled", channels)
    if getattr(model, "output_fmt", "NCHW") == "NHWC":
        return FeatureMap(model, "nhwc", shape[3])
    return FeatureMap(model, "nchw", shape[1])


def wrap(name: str, body: FeatureMap, *, pretrained: bool, **normalisation: Any) -> Backbone:
    """A `Backbone` around `body`, with the normalisation of timm's own weights unless another is given."""
    config = body.model.pretrained_cfg
    facts: dict[str, Any] = {"mean": config["mean"], "std": config["std"], **normalisation}
    size = config["input_size"][-1]
    return Backbone(body, name=name, feature_dim=body.channels, input_size=size, pretrained=pretrained, **facts)


def load_from_hub(name: str, body: FeatureMap, seed: int, offline_variant: int = 0, outputs: int = 0) -> None:
    """Fill `body` with timm's published weights; `offline_variant` is the EfficientNet-Lite an error recommends."""
    config = body.model.pretrained_cfg
    options = hub_options(name, config, offline_variant)
    if body.layout != "pooled":
        options["global_pool"] = ""
    try:
        body.model = _create(tagged(config), seed, outputs, **options)
    except Exception as error:  # the hub's client raises a dozen types: connection, time-out, HTTP status, …
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise unreachable(name, config, reason, offline_variant) from error
    file = options.get("pretrained_cfg_overlay", {}).get("file")
    check_finite(body.model.state_dict(), file or f"the timm hub ({config.get('hf_hub_id') or config.get('url')})")


def classifier_names(model: Any) -> tuple[str, ...]:
    """Prefixes of the tensors that only the classifier has: in weight files, but not in a backbone."""
    names = model.pretrained_cfg.get("classifier") or ()
    return (names,) if isinstance(names, str) else tuple(names)


def check_timm_name(name: str, registered: list[str]) -> None:
    """Raise for an architecture that timm does not have, and for a tag (`resnet50.TAG`) that it does not have."""
    timm = import_timm()
    if not (isinstance(name, str) and timm.is_model(name)):
        raise unknown_backbone(name, registered)
    try:
        timm.models.get_pretrained_cfg(name)
    except RuntimeError as error:
        architecture, _, tag = name.partition(".")
        raise OodmlError(
            f"Unknown weights {tag!r} of backbone {architecture!r}. timm has: "
            f"{', '.join(timm.list_pretrained(f'{architecture}.*')) or f'{architecture}, without any'}."
        ) from error


def unknown_backbone(name: str, registered: list[str]) -> OodmlError:
    """The error for a name that neither oodml nor timm knows: nearest matches of both."""
    candidates = list(dict.fromkeys([*registered, *import_timm().list_models()]))
    near = difflib.get_close_matches(str(name), candidates, n=4, cutoff=0.6)
    near = near or difflib.get_close_matches(str(name), registered, n=1, cutoff=0.5)  # e.g. `itny`
    hint = f" Nearest matches: {', '.join(near)}." if len(near) > 1 else f" Did you mean {near[0]!r}?" if near else ""
    return OodmlError(
        f"Unknown backbone {name!r}.{hint} Registered: {', '.join(registered)}; any timm model name works too."
    )


def _create(name: str, seed: int, outputs: int, **options: Any) -> Any:
    timm = import_timm()
    with own_seed(seed):
        return timm.create_model(name, num_classes=outputs, **options)


@torch.no_grad()
def _output_shape(model: Any) -> tuple[int, ...]:
    """The shape of the output for one image of the configured size; measured, because timm's attributes vary.

    Tensors on the `meta` device have shapes and no values, so nothing is computed. The few networks that read values,
    or keep tensors that cannot be moved, are run on the CPU.
    """
    image = torch.zeros(1, *model.pretrained_cfg["input_size"])
    try:
        return tuple(copy.deepcopy(model).to("meta").eval()(image.to("meta")).shape)
    except (RuntimeError, NotImplementedError):
        return tuple(copy.deepcopy(model).eval()(image).shape)


@functools.cache
def ensure_torchvision() -> bool:
    """Make `import torchvision` and `import timm` work next to a CPU-only torch; True if that took a declaration.

    The package index has no CPU build of torchvision. The compiled operators of the stock wheel link against CUDA, and
    without them `import torchvision` fails with "operator torchvision::nms does not exist", because it attaches Python
    kernels to two operators that are not declared. Their schemas are enough for transforms, models and timm; the
    operators themselves stay absent. Where the compiled operators load, nothing is declared.
    """
    if "torchvision" in sys.modules or _native_library_loads() or hasattr(torch.ops.torchvision, "nms"):
        return False
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _TORCHVISION_SCHEMAS:
        library.define(schema)
    _declared.append(library)
    return True


def _native_library_loads() -> bool:
    """Whether `import torchvision` will find its operators, or torchvision is not installed."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True
    folder = Path(spec.origin).parent
    for path in (folder / f"_C{suffix}" for suffix in EXTENSION_SUFFIXES):
        if path.exists():
            try:
                torch.ops.load_library(path)  # torchvision loads the same file again, without effect
            except OSError:
                return False
            return True
    return False
