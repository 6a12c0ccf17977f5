"""The tables of the docs are those of the registries."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from oodml.data import list_batch_samplers, list_datasets
from oodml.methods import list_methods
from oodml.models import list_backbones

DOCS = Path(__file__).parents[1] / "docs"


def build_tables():
    spec = importlib.util.spec_from_file_location("build_tables", DOCS / "build_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "registered"),
    [
        ("methods.md", list_methods),
        ("datasets.md", lambda: [*list_datasets(), *list_batch_samplers()]),
        ("models.md", list_backbones),
    ],
)
def test_tables_are_up_to_date(name, registered):
    """A name without a row is left to `make format`, which writes it: a new file must not break a test of another."""
    page = (DOCS / name).read_text(encoding="utf-8")
    listed = [each for each in registered() if f"| `{each}`" in page]
    assert len(listed) >= 8
    assert build_tables().fill(page, listed, name) == page, "run python docs/build_tables.py"


def test_a_wrong_row_is_replaced():
    page = (DOCS / "methods.md").read_text(encoding="utf-8")
    wrong = page.replace("| `rho` | R-contrastive", "| `rho` | Something else")
    assert wrong != page
    assert build_tables().fill(wrong, list_methods(), "methods.md") != wrong
