"""Every Python example of docs/datasets.md runs."""

from __future__ import annotations

import re
from pathlib import Path

from oodml.data.load import REGISTRY as DATASETS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "datasets.md"


def test_the_examples_run(glyphs):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    names: dict = {}
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
    finally:
        DATASETS._records.pop("mine", None)
    assert names["x"].shape == (3, 3, 32, 32) and len(names["indices"]) == len(names["chosen"]) == 112
