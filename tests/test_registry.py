"""The registry: scanning, entry points, frozen records, kind errors."""

import dataclasses
import functools
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import torch

from oodml import _registry
from oodml._errors import OodmlError
from oodml._registry import Registry

NOTHING = "concurrent"  # a package to scan whose modules register nothing


@pytest.fixture
def animals():
    registry = Registry("animal", NOTHING, "oodml.test_animals", context=("size",))

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
    registry = Registry("animal", NOTHING, "oodml.test_animals")
    assert registry.names() == ["from-outside"]
    assert registry.make("from-outside", numerator=3) == 3


def run(program: str) -> str:
    """What a fresh process prints, in which nothing was scanned yet."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


MINE = """
import oodml
from oodml.losses import loss_record
class Mine: pass
"""


def test_a_name_of_the_package_is_replaced_before_anything_was_looked_up():
    program = MINE + (
        "oodml.register_loss('margin', Mine, replace=True)\n"
        "print(loss_record('margin').factory is Mine, len(oodml.list_losses()) > 20)"
    )
    assert run(program) == "True True"


def test_a_name_of_the_package_is_refused_at_once_in_a_fresh_process():
    program = MINE + (
        "try: oodml.register_loss('margin')(Mine)\nexcept oodml.OodmlError as error: print(error)\n"
        "print(loss_record('margin').factory is Mine)"
    )
    told = run(program)
    assert "'margin' is registered already" in told and told.endswith("False")


def test_a_module_of_the_package_may_be_imported_first():
    program = (
        "import oodml.losses.margin, sys\nprint('oodml.losses.triplet' in sys.modules, len(oodml.list_losses()) > 20)"
    )
    assert run(program) == "False True"


def test_an_alias_that_is_replaced_leaves_its_record(animals):
    animals.register("pony", lambda: "small", replace=True)
    assert animals.make("pony") == "small"
    assert animals["horse"].aliases == ()
    assert animals.names() == ["horse", "pony"]


def test_the_aliases_of_a_replaced_record_follow_it(animals):
    animals.register("horse", lambda: "new", replace=True)
    assert animals.make("pony") == "new" and animals["horse"].aliases == ("pony",)
    animals.register("horse", lambda: "newer", aliases=("pony", "nag"), replace=True)
    assert animals.make("nag") == animals.make("pony") == "newer"
    animals.register("steed", lambda: "newest", aliases=("horse",), replace=True)
    assert animals.names() == ["steed"] and animals["steed"].aliases == ("horse", "pony", "nag")
    assert {animals.make(name) for name in ("steed", "horse", "pony", "nag")} == {"newest"}


def test_a_scan_that_fails_is_not_taken_for_finished():
    registry = Registry("animal", "oodml.there_is_no_such_package", "oodml.test_animals")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="there_is_no_such_package"):
            registry.names()


def test_a_broken_entry_point_is_named_and_the_others_stay(monkeypatch, animals):
    entries = [
        EntryPoint("broken", "fractions:Nothing", "oodml.test_animals"),
        EntryPoint("gone", "no_such_module:Thing", "oodml.test_animals"),
        EntryPoint("pony", "fractions:Fraction", "oodml.test_animals"),  # an alias of the horse
        EntryPoint("good", "fractions:Fraction", "oodml.test_animals"),
    ]
    monkeypatch.setattr(_registry, "entry_points", lambda group: entries)
    with pytest.warns(UserWarning, match="cannot be loaded") as told:
        assert animals.names() == ["good", "horse"]
    assert [("fractions:Nothing" in str(w.message), "no_such_module" in str(w.message)) for w in told] == [
        (True, False),
        (False, True),
    ]
    assert animals.make("pony", context={"size": 1})[0] == "horse"


def test_threads_that_come_first_all_see_every_name():
    program = """
import threading, oodml
found = []
barrier = threading.Barrier(8)
def look():
    barrier.wait()
    try:
        found.append(type(oodml.make_miner("distance")).__name__)
    except Exception as error:
        found.append(str(error))
threads = [threading.Thread(target=look) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(set(found))
"""
    assert run(program) == "{'DistanceWeighted'}"


@pytest.mark.parametrize("name", [3, "", "two words", None])
def test_a_name_is_one_word(animals, name):
    with pytest.raises(OodmlError, match="is one word"):
        animals.register(name, lambda: None, summary="x")
    with pytest.raises(OodmlError, match="is one word"):
        animals.register("fine", lambda: None, aliases=(name,))


def test_one_alias_need_not_be_a_list(animals):
    animals.register("donkey", lambda: "donkey", aliases="ass")
    assert animals.make("ass") == "donkey" and animals["donkey"].aliases == ("ass",)


def test_a_fact_that_no_record_has_is_refused(animals):
    with pytest.raises(OodmlError, match=r"'papers'.*Did you mean 'paper'"):
        animals.register("mule", lambda: None, papers="Darwin 1859")


def test_what_is_made_already_is_no_factory(animals):
    with pytest.raises(OodmlError, match="got an instance: register Linear"):
        animals.register("made", torch.nn.Linear(2, 2))


def test_what_a_factory_cannot_do_without_is_named(animals):
    """A function of embeddings and labels is a slip where one that makes it is wanted."""
    animals.register("cow", lambda embeddings, labels: 0)
    with pytest.raises(OodmlError, match=r"'cow' needs embeddings, labels.*not the animal itself"):
        animals.make("cow", context={"size": 3})
    assert animals.make("cow", 1, labels=2) == 0


def test_a_partial_is_described_by_what_it_calls(animals):
    animals.register("tall", functools.partial(animals["horse"].factory, legs=8))
    assert animals["tall"].summary == "An animal to ride on."


def test_a_switch_is_true_or_false(animals):
    animals.register("cow", lambda milk=True: milk, summary="x")
    assert animals.make("cow", milk=False) is False
    with pytest.raises(OodmlError, match="option milk of animal 'cow' is True or False, got 'no'"):
        animals.make("cow", milk="no")


def test_a_module_with_an_entry_point_may_be_imported_first(monkeypatch, tmp_path):
    registry = Registry("animal", NOTHING, "oodml.test_animals")
    entry = EntryPoint("llama", "plugin_with_a_llama:Llama", "oodml.test_animals")
    monkeypatch.setattr(_registry, "entry_points", lambda group: [entry])
    monkeypatch.setattr(_registry, "ANIMALS", registry, raising=False)
    text = "from oodml import _registry\n@_registry.ANIMALS.register('llama')\nclass Llama: ...\n"
    (tmp_path / "plugin_with_a_llama.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    llama = __import__("plugin_with_a_llama").Llama
    assert registry.names() == ["llama"] and registry["llama"].factory is llama
