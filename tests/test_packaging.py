"""What the package declares is what it imports."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def normal(name: str) -> str:
    """A distribution's name without its version, as indexes spell it."""
    return re.split(r"[^\w.-]", name)[0].lower().replace("_", "-")


DECLARED = {normal(each) for each in PROJECT["dependencies"]}
OPTIONAL = {normal(each) for extra in PROJECT["optional-dependencies"].values() for each in extra}


NOT_INSTALLED = {"umap": ["umap-learn"], "triton": ["torch"]}  # triton comes with the torch of machines with a GPU


def imported() -> set[str]:
    """Top-level names of other distributions that the package imports anywhere, inside functions too."""
    found = set()
    for path in (ROOT / "src" / "oodml").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - {"oodml"}


def test_every_import_is_declared():
    distributions = {**importlib.metadata.packages_distributions(), **NOT_INSTALLED}
    undeclared = {
        name
        for name in imported()
        if not {normal(each) for each in distributions.get(name, [name])} & (DECLARED | OPTIONAL)
    }
    assert undeclared == set()


def test_every_dependency_is_pinned_for_the_tests():
    pinned = {normal(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    assert pinned >= DECLARED
