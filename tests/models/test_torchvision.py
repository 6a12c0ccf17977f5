"""torchvision must import on a CPU-only torch and stay untouched on a normal install; each case in a fresh process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def run(program: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    prefix = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    return subprocess.run([sys.executable, "-c", prefix + program], capture_output=True, text=True, timeout=120)


def loadable_library() -> Path:
    """Some shared object that any process can load."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/libc.so" in line or "/libm.so" in line:
            return Path(line.split()[-1])
    pytest.skip("no shared library found to stand in for a working native library")


def fake_torchvision(folder: Path) -> Path:
    package = folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("")
    return package


def test_transforms_models_and_timm_import_after_it() -> None:
    done = run(
        "from oodml.models.backbones.timm_models import ensure_torchvision\n"
        "ensure_torchvision()\n"
        "import torch, torchvision, timm\n"
        "from torchvision.transforms import v2, Resize\n"
        "assert v2.CenterCrop(4)(torch.ones(3, 8, 8)).shape == (3, 4, 4)\n"
        "assert Resize(4)(torch.ones(3, 8, 8)).shape == (3, 4, 4)\n"
        "assert torchvision.models.resnet18(weights=None).eval()(torch.ones(1, 3, 32, 32)).shape == (1, 1000)\n"
        "print('fine')"
    )
    assert done.stdout.strip() == "fine", done.stderr


def test_declares_schemas_exactly_when_the_import_would_fail() -> None:
    plain = run("import torchvision; print('fine')")
    helped = run("from oodml.models.backbones.timm_models import ensure_torchvision as e; print(e(), e())")
    broken = "operator torchvision::nms does not exist" in plain.stderr
    assert broken or plain.stdout.strip() == "fine", plain.stderr
    assert helped.stdout.split() == [str(broken)] * 2, helped.stderr  # asking twice declares once


def test_normal_install_is_untouched(tmp_path: Path) -> None:
    shutil.copy(loadable_library(), fake_torchvision(tmp_path) / "_C.so")
    done = run(
        "import torch\n"
        "from oodml.models.backbones.timm_models import ensure_torchvision\n"
        "print(ensure_torchvision(), hasattr(torch.ops.torchvision, 'nms'))",
        tmp_path,
    )
    assert done.stdout.split() == ["False", "False"], done.stderr


@pytest.mark.long
def test_library_that_cannot_load_gets_the_schemas(tmp_path: Path) -> None:
    (fake_torchvision(tmp_path) / "_C.so").write_bytes(b"not a library")
    done = run(
        "import torch\n"
        "from oodml.models.backbones.timm_models import ensure_torchvision\n"
        "print(ensure_torchvision(), hasattr(torch.ops.torchvision, 'nms'), hasattr(torch.ops.torchvision, 'qnms'))",
        tmp_path,
    )
    assert done.stdout.split() == ["True", "True", "True"], done.stderr


@pytest.mark.long
def test_schemas_someone_else_declared_are_left_alone() -> None:
    done = run(
        "import torch\n"
        "library = torch.library.Library('torchvision', 'FRAGMENT')\n"
        "for name in ('nms', 'qnms'):\n"
        "    if not hasattr(torch.ops.torchvision, name):\n"
        "        library.define(name + '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
        "from oodml.models.backbones.timm_models import ensure_torchvision\n"
        "print(ensure_torchvision())"
    )
    assert done.stdout.strip() == "False", done.stderr
