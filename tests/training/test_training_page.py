"""The examples of docs/training.md run as printed."""

import re
from pathlib import Path

import oodml
from oodml.training import train

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_examples_run(tmp_path, monkeypatch, settings):
    monkeypatch.chdir(tmp_path)
    first, own = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    small = first.replace('"glyphs"', '"patterns"').replace("steps=60", "steps=3, batch_size=16, device='cpu'")
    names: dict = {}
    exec(compile(small, str(PAGE), "exec"), names)
    assert names["embed"](oodml.load_dataset("patterns").image(0)).shape == (64,)
    exec(compile(own, str(PAGE), "exec"), {})
    assert train(settings(method="two-heads", steps=2)).scores
