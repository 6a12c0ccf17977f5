"""Every example in docs/models.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oodml.models.backbones.base import REGISTRY

DOCS = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OODML_CACHE", str(tmp_path))
    try:
        for code in re.findall(r"```python\n(.*?)```", DOCS, flags=re.DOTALL):
            exec(compile(code, "docs/models.md", "exec"), {})
    finally:
        REGISTRY._records.pop("grey-pixels", None)
    printed = capsys.readouterr().out
    for expected in ("'tiny'", "1280 224 True", "torch.Size([2, 256, 1, 1])", ", 1280)"):
        assert expected in printed
