"""docs/losses.md: its tables are the registries', and its examples run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from oodml.losses import list_losses
from oodml.losses.registry import REGISTRY

DOCS = Path(__file__).parents[2] / "docs"


def script(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_tables():
    return script("build_tables")


def test_tables_are_up_to_date():
    """Every row is the one that the registry gives; a loss that is new gets its row from `make format`."""
    page = (DOCS / "losses.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([^`]+)`", page, re.MULTILINE))
    assert listed >= {"margin", "triplet", "distance", "rho"} and len(listed & set(list_losses())) >= 22
    assert build_tables().fill(page, listed) == page, "run python docs/build_tables.py"


def test_stubs_are_up_to_date():
    """The types that editors read; a loss that is new gets them from `make format`."""
    stubs = script("build_stubs")
    for path, (kind, records) in stubs.STUBS.items():
        text = path.read_text(encoding="utf-8")
        listed = set(re.findall(rf"def make_{kind}\(name: Literal\['([^']+)'", text))
        assert len(listed) >= 13
        assert stubs.stub(kind, records(), listed) == text, "run python docs/build_stubs.py"


def test_table_escapes_and_shortens():
    tables = build_tables()
    assert tables.markdown_table(["a"], [["x|y"]]) == "| a |\n| --- |\n| x\\|y |"
    assert "`temperature=0.1111`" in tables.losses_table()


def test_examples_run():
    page = (DOCS / "losses.md").read_text(encoding="utf-8")
    scope: dict[str, object] = {"__name__": "docs"}
    try:
        for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(code, scope)
        assert "spread" in list_losses() and "`spread`" not in build_tables().losses_table()
    finally:
        REGISTRY._records.pop("spread", None)
