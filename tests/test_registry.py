"""The registry: scanning, entry points, frozen records, kind errors."""

import dataclasses
from importlib.metadata import EntryPoint

import pytest

from oodml import _registry
from oodml._errors import OodmlError
from oodml._registry import Registry


@pytest.fixture
def animals():
    registry = Registry("animal", "oodml.cli", "oodml.test_animals", context=("size",))
    registry._scanned = True  # nothing to scan: the names are registered here

    @registry.register("horse", aliases=("pony",), search={"legs": (2, 8)})
    def horse(size, legs=4):
        """An animal to ride on.

        More about it.
        """
        return ("horse", size, legs)

    return registry


def test_a_record_is_frozen_and_derives_from_the_factory(animals):
    record = animals["pony"]
    assert (record.name, record.summary, dict(record.defaults)) == ("horse", "An animal to ride on.", {"legs": 4})
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.name = "cow"
    with pytest.raises(TypeError):
        record.search["legs"] = (1, 2)


def test_make_passes_context_only_where_it_is_wanted(animals):
    animals.register("stone", lambda: "stone", summary="takes nothing")
    assert animals.make("horse", context={"size": 3}, legs=5) == ("horse", 3, 5)
    assert animals.make("stone", context={"size": 3}) == "stone"


def test_an_unknown_name_lists_the_valid_ones_and_the_nearest(animals):
    with pytest.raises(OodmlError, match=r"Unknown animal 'hors'\. Did you mean 'horse'\? Valid names: horse, pony"):
        animals["hors"]


def test_a_misspelt_option_is_refused_with_the_nearest(animals):
    with pytest.raises(OodmlError, match=r"'leg'\. Did you mean 'legs'\?"):
        animals.make("horse", context={"size": 1}, leg=3)


def test_a_taken_name_is_refused_unless_replaced(animals):
    with pytest.raises(OodmlError, match="registered already"):
        animals.register("pony", lambda: None)
    animals.register("horse", lambda: "new", summary="x", replace=True)
    assert animals.make("horse") == "new"


def test_something_that_cannot_be_called_is_refused(animals):
    with pytest.raises(OodmlError, match="class or function"):
        animals.register("rock", 3)


def test_entry_points_add_names_without_an_import(monkeypatch):
    entry = EntryPoint("from-outside", "fractions:Fraction", "oodml.test_animals")
    monkeypatch.setattr(_registry, "entry_points", lambda group: [entry] if group == "oodml.test_animals" else [])
    registry = Registry("animal", "oodml.study", "oodml.test_animals")
    assert registry.names() == ["from-outside"]
    assert registry.make("from-outside", numerator=3) == 3
