"""Make `import torchvision` work on a CPU-only torch.

The package index has no CPU build of torchvision: the stock wheel's compiled operators link against CUDA, cannot load
beside a CPU-only torch, and `import torchvision` then dies with "operator torchvision::nms does not exist", because
torchvision attaches Python kernels to operators that nobody declared. Two of them are attached unconditionally, `nms`
and `qnms`; declaring their schemas is enough for transforms (v1 and v2), models and timm. The detection operators
themselves stay absent, and images are decoded with Pillow, never with torchvision.

Where the native library loads, as on any normal CUDA or CPU install, nothing is declared.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a declaration lives only as long as its Library object


@functools.cache
def ensure_torchvision() -> bool:
    """Call before anything imports torchvision or timm. True if the schemas had to be declared."""
    if "torchvision" in sys.modules or _native_library_loads() or hasattr(torch.ops.torchvision, "nms"):
        return False
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)
    return True


def _native_library_loads() -> bool:
    """Whether torchvision's own import will find its operators; an absent torchvision has nothing to repair."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True
    folder = Path(spec.origin).parent
    for path in (folder / f"_C{suffix}" for suffix in EXTENSION_SUFFIXES):
        if path.exists():
            try:
                torch.ops.load_library(path)  # torchvision loads the same file a moment later: no second effect
            except OSError:
                return False
            return True
    return False
