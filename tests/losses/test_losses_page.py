"""docs/losses.md: its tables are the registries', and its examples run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from oodml.losses import list_losses
from oodml.losses.registry import REGISTRY

DOCS = Path(__file__).parents[2] / "docs"


def build_tables():
    spec = importlib.util.spec_from_file_location("build_tables", DOCS / "build_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_up_to_date():
    page = (DOCS / "losses.md").read_text(encoding="utf-8")
    tables = build_tables()
    table = tables.losses_table()
    assert sum(f"| `{name}`" in table for name in list_losses()) >= 22
    assert tables.fill(page) == page, "run python docs/build_tables.py"


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
