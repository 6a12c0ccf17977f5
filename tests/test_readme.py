"""The example of the README runs as printed, and every file the README links to exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL))
def test_the_example_runs(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    easy, hard = re.findall(r"FID ([\d.]+): recall@1 ([\d.]+) -> ([\d.]+)", capsys.readouterr().out)
    assert float(easy[0]) < float(hard[0])
    assert float(easy[2]) > float(easy[1])
    assert float(easy[2]) > float(hard[2])  # what the whole package is about


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", README))
def test_links_point_to_files(target):
    assert (ROOT / target).exists()
