"""Speed of feature extraction: EfficientNet-Lite0 with average pooling, float32.

    python benchmarks/features.py                    # CPU: our engine (OpenVINO) against eager torch and onnxruntime
    python benchmarks/features.py --device cuda      # GPU: eager torch, images a second

Every contestant computes the same pictures in the same process, in turns, so that whatever else the machine does falls
on all of them. Each peer is measured with the whole batch at once and with small ones and keeps its better figure;
torch runs channels-last, its fastest eager layout. The ratio is that of the best turns, the median stands beside it.
The program exits with 1 where a ratio misses its floor, and checks that all features agree within 1e-4.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from oodml.models import make_backbone
from oodml.models.engines import TOLERANCE, OpenVinoEngine, TorchEngine
from oodml.models.features import _Pooled

Contestant = Callable[[Tensor], Tensor]
FLOORS = {"torch": 3.0, "onnxruntime": 1.3}  # how many times faster than these peers ours must be


def onnxruntime_session(network: nn.Module, size: int) -> Contestant:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.zeros(2, 3, size, size),),
            buffer,
            input_names=["images"],
            dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
            verbose=False,
        )
    session = onnxruntime.InferenceSession(buffer.getvalue(), options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def in_parts(contestant: Contestant, count: int) -> Contestant:
    return lambda images: torch.cat([contestant(part) for part in images.split(count)])


def speeds(contestants: dict[str, Contestant], images: Tensor, rounds: int) -> dict[str, list[float]]:
    """Images a second of every contestant in every round, in turns; the first round warms up and does not count."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, contestant in contestants.items():
            started = time.perf_counter()
            contestant(images)
            if images.is_cuda:
                torch.cuda.synchronize()
            if turn:
                found[name].append(len(images) / (time.perf_counter() - started))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    network = _Pooled(make_backbone("tf_efficientnet_lite0"), "avg").eval()
    images = torch.rand(args.images, 3, args.size, args.size, generator=torch.Generator().manual_seed(0))
    device = torch.device(args.device)
    contestants: dict[str, Contestant] = {}
    if device.type == "cpu":
        contestants["ours (OpenVINO)"] = OpenVinoEngine(network, args.size)
        session = onnxruntime_session(network, args.size)
        contestants |= {"onnxruntime": session, "onnxruntime, 8 at a time": in_parts(session, 8)}
    eager = TorchEngine(network, device)
    contestants |= {"torch": eager, "torch, 8 at a time": in_parts(eager, 8)}
    images = images.to(device)
    expected = eager(images)
    for name, contestant in contestants.items():
        difference = float((contestant(images) - expected).norm() / expected.norm())
        assert difference <= TOLERANCE, f"{name} computes something else: relative difference {difference:.1e}"
    found = speeds(contestants, images, args.rounds)
    return report(found, args)


def report(found: dict[str, list[float]], args: argparse.Namespace) -> int:
    ours, *_ = found
    threads = f", {torch.get_num_threads()} threads" if args.device == "cpu" else ""
    print(f"EfficientNet-Lite0, {args.images} pictures of {args.size} px, {args.device}{threads}, {args.rounds} rounds")
    print(f"{'':26} {'best':>9} {'median':>9}  {'ours is':>8}")
    for name, rates in found.items():
        ratio = "" if name == ours else f"{max(found[ours]) / max(rates):7.2f}×"
        print(f"{name:26} {max(rates):7.1f}/s {statistics.median(rates):7.1f}/s  {ratio:>8}")
    missed = 0
    for peer, floor in FLOORS.items():
        rivals = [max(rates) for name, rates in found.items() if name.partition(",")[0] == peer]
        if args.device == "cpu" and rivals:
            ratio = max(found[ours]) / max(rivals)
            missed += ratio < floor
            print(f"{'missed' if ratio < floor else 'met'}: {ratio:.2f}× {peer}, floor {floor}×")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
