"""What computes features: OpenVINO on a CPU if it is installed, torch everywhere else.

OpenVINO runs the same float32 network several times faster than eager torch on a CPU. Each
converted network is first compared with torch, on other images and another batch size than it was traced with.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import warnings
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from oodml._errors import OodmlError
from oodml._progress import tell

TOLERANCE = 1e-4  # relative; float32 rounding in another order of summation stays near 1e-6
_PIXELS_A_REQUEST = 2 * 224 * 224  # activations of small requests fit into a core's cache: 1.3 times as fast as 64


class Engine(Protocol):
    """Images (b, 3, S, S) to features (b, D), both float32."""

    name: str

    def __call__(self, images: Tensor) -> Tensor: ...


def make_engine(network: nn.Module, device: torch.device, size: int, quiet: bool = False) -> Engine:
    """The fastest engine for `network` on `device`; on a CPU a note says why it is not OpenVINO."""
    network = network.eval()
    if device.type != "cpu":
        return TorchEngine(network, device)
    if importlib.util.find_spec("openvino") is None:
        _note("OpenVINO is not installed. With it (pip install openvino) features take a fraction of the time.", quiet)
        return TorchEngine(network, device)
    try:
        engine = OpenVinoEngine(network, size)
    except _Unusable as reason:
        _note(f"OpenVINO cannot run this backbone ({reason}); torch computes the features.", quiet)
        return TorchEngine(network, device)
    return engine


class TorchEngine:
    """Eager torch, channels last (the layout that convolutions are fastest in on CPUs and on tensor cores)."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self.name = f"torch, {device.type}"
        self._network = network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        return self._network(images.contiguous(memory_format=torch.channels_last)).float()


class OpenVinoEngine:
    """OpenVINO on the CPU, float32, a few images a request and several requests at a time.

    It uses as many threads as torch (`torch.set_num_threads`, `OMP_NUM_THREADS`).
    """

    name = "OpenVINO"

    def __init__(self, network: nn.Module, size: int) -> None:
        openvino = _import_openvino()
        generator = torch.Generator().manual_seed(0)
        example, others = (torch.rand(n, 3, size, size, generator=generator) for n in (2, 3))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # tracing warns of shape checks, whose results are constant here
                graph = openvino.convert_model(network, example_input=example, input=[-1, 3, size, size])
            options = {
                "INFERENCE_PRECISION_HINT": "f32",  # newer CPUs would use bfloat16
                "PERFORMANCE_HINT": "THROUGHPUT",
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            }
            self._compiled = openvino.Core().compile_model(graph, "CPU", options)
        except Exception as error:  # its front end raises a different type for every unsupported operator
            raise _Unusable(str(error).strip().partition("\n")[0] or type(error).__name__) from error
        self._queue = openvino.AsyncInferQueue(self._compiled, 0)  # 0: OpenVINO chooses the number of requests
        self._piece = max(1, _PIXELS_A_REQUEST // size**2)
        self._check(network, others)

    def __call__(self, images: Tensor) -> Tensor:
        pixels = np.ascontiguousarray(images.numpy(), dtype=np.float32)
        parts: list[np.ndarray | None] = [None] * -(-len(pixels) // self._piece)

        def keep(request: Any, at: int) -> None:
            parts[at] = request.get_output_tensor().data.copy()

        self._queue.set_callback(keep)
        for at in range(len(parts)):
            piece = pixels[at * self._piece : (at + 1) * self._piece]
            self._queue.start_async({0: piece}, at, share_inputs=True)
        self._queue.wait_all()
        return torch.from_numpy(np.concatenate([part for part in parts if part is not None]))

    @torch.inference_mode()
    def _check(self, network: nn.Module, images: Tensor) -> None:
        expected, found = network(images), self(images)
        if found.shape != expected.shape:
            raise _Unusable(f"its output is {tuple(found.shape)}, torch's {tuple(expected.shape)}")
        difference = float((found - expected).norm() / expected.norm().clamp_min(1e-12))
        if not difference <= TOLERANCE:
            raise _Unusable(f"its output differs from torch's by {difference:.0e}, more than {TOLERANCE:.0e}")


class _Unusable(Exception):
    """Why OpenVINO cannot be used for a network."""


def _import_openvino() -> Any:
    # Importing openvino sends telemetry over the network without asking, unless its telemetry package cannot be
    # imported. Its other switches write to the user's home folder.
    if "openvino" not in sys.modules:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ImportError as error:
        raise OodmlError(
            f"OpenVINO is installed but does not import ({error}): repair it with "
            "pip install --force-reinstall openvino, or uninstall it to use torch."
        ) from error
    return openvino


def _note(text: str, quiet: bool) -> None:
    if not quiet:
        _note_once(text)


@functools.cache
def _note_once(text: str) -> None:
    """Printed once per process: a command may compute features of several datasets."""
    tell("note", text)
