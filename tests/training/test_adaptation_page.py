"""The examples of docs/adaptation.md run as printed, on a smaller dataset."""

import re
from pathlib import Path

from oodml.encoders import PUBLISHED

PAGE = Path(__file__).parents[2] / "docs" / "adaptation.md"


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    small = first.replace('"glyphs"', '"patterns"').replace("steps=60", "steps=3, batch_size=16, device='cpu'")
    names: dict = {}
    exec(compile(small.replace("episodes=5", "episodes=2, steps=3, device='cpu'"), str(PAGE), "exec"), names)
    assert len(names["per_episode"]) == 2
    exec(
        compile(second.replace('"glyphs"', '"patterns"').replace("tf_efficientnet_lite0", "tiny"), str(PAGE), "exec"),
        names,
    )
    assert "tiny default normalised" in capsys.readouterr().out


def test_every_short_name_is_explained():
    page = PAGE.read_text(encoding="utf-8")
    for short, name in PUBLISHED.items():
        assert f"`{short}`" in page and f"`{name}`" in page
