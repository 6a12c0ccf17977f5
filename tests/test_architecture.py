"""The house stays a house: imports follow the data, no cycles, every public name is where the package says."""

import ast
import importlib
import re
from collections import defaultdict
from pathlib import Path

import pytest

import oodml

PACKAGE = Path(oodml.__file__).parent

# Which rooms a room may import, beside the private helpers at the top of the package.
ALLOWED = {
    "data": set(),
    "miners": set(),
    "evaluation": set(),
    "recipes": set(),
    "shift": set(),
    "losses": {"miners"},
    "models": {"data"},
    "methods": {"losses", "miners", "models"},
    "config": {"data", "evaluation", "losses", "methods", "miners", "models", "recipes"},
    "encoders": {"config", "data", "evaluation", "models"},
    "training": {"config", "data", "encoders", "evaluation", "methods", "models"},
    "adaptation": {
        "config",
        "data",
        "encoders",
        "evaluation",
        "losses",
        "methods",
        "miners",
        "models",
        "shift",
        "training",
    },
    "study": {
        *("config", "data", "evaluation", "losses", "methods", "miners", "models", "recipes", "shift"),
        *("encoders", "training", "adaptation"),
    },
    "reporting": {"data", "evaluation", "shift", "study"},
    "auditing": {"config", "data", "models", "reporting", "shift", "study"},
    "search": {"data", "evaluation", "models", "training"},
}


def imported_rooms(house: str = "oodml") -> dict[str, set[str]]:
    """room -> rooms it imports anywhere in its files, inside functions too; `house`: the package they are rooms of."""
    rooms: dict[str, set[str]] = defaultdict(set)
    floor = len(house.split("."))
    for path in PACKAGE.joinpath(*house.split(".")[1:]).rglob("*.py"):
        parts = ("oodml", *path.relative_to(PACKAGE).with_suffix("").parts)
        package = list(parts[:-1])  # of a package's __init__.py: the package itself
        room = parts[floor]
        if room.startswith("__"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                stem = ".".join([*base, node.module] if node.module else base)
                names = [f"{stem}.{alias.name}" for alias in node.names] if stem == house else [stem]
            for name in names:
                pieces = name.split(".")
                if name.startswith(f"{house}.") and pieces[floor] != room:
                    rooms[room].add(pieces[floor])
    return rooms


def is_private(room: str) -> bool:
    return room.startswith("_")


def test_imports_follow_the_data():
    for room, targets in imported_rooms().items():
        if room == "cli" or is_private(room):
            continue  # the command line may call any room
        forbidden = {t for t in targets if not is_private(t)} - ALLOWED[room]
        assert not forbidden, f"{room} imports {sorted(forbidden)}; allowed: {sorted(ALLOWED[room])}"


def test_the_recipes_import_nothing_but_the_errors():
    assert imported_rooms()["recipes"] == {"_errors"}
    assert imported_rooms("oodml.recipes").keys() >= {"oodml", "revisiting", "s2sd", "sharing"}


def test_the_private_helpers_import_no_room():
    rooms = imported_rooms()
    for room in filter(is_private, rooms):
        assert all(is_private(target) for target in rooms[room]), f"{room} imports {rooms[room]}"


@pytest.mark.parametrize("house", ["oodml", "oodml.study", "oodml.recipes"])
def test_the_rooms_form_no_cycle(house):
    rooms = imported_rooms(house)
    assert len(rooms) > 3, "the walk through the package finds its rooms"

    def reachable(start: str) -> set[str]:
        seen, todo = set(), list(rooms.get(start, ()))
        while todo:
            room = todo.pop()
            if room not in seen:
                seen.add(room)
                todo.extend(rooms.get(room, ()))
        return seen

    assert [room for room in rooms if room in reachable(room)] == []


@pytest.mark.parametrize("name", oodml.__all__)
def test_every_public_name_can_be_had(name):
    assert getattr(oodml, name) is not None


def test_an_unknown_public_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match="build_splits"):
        _ = oodml.no_such_name


@pytest.mark.parametrize("page", sorted((PACKAGE.parents[1] / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_every_name_of_a_study_that_the_pages_tell_is_there(page):
    for name in set(re.findall(r"oodml\.study((?:\.\w+)+)", page.read_text(encoding="utf-8"))):
        *modules, last = name.strip(".").split(".")
        module = importlib.import_module(".".join(["oodml.study", *modules]))
        assert hasattr(module, last) or importlib.import_module(f"{module.__name__}.{last}"), name
