"""docs/fidelity.md: it names only options that exist, and the forms that the protocols really choose."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oodml.losses import list_losses, loss_record
from oodml.miners import list_miners, miner_record
from oodml.recipes import recipe

PAGE = (Path(__file__).parents[2] / "docs" / "fidelity.md").read_text(encoding="utf-8")
# A row may also point to options of another name, or to an argument of the call.
BESIDES = {"intra": {"mode"}}


def rows(section):
    """First cell -> all cells, of the table under a heading."""
    lines = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0].splitlines()
    cells = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("| `")]
    return {row[0]: row for row in cells if len(row) == 6}


def named_options(cell):
    return {key for code in re.findall(r"`([^`]*=[^`]*)`", cell) for key in re.findall(r"(\w+)=", code)}


@pytest.mark.parametrize(("section", "names"), [("Objectives", list_losses()), ("Miners", list_miners())])
def test_every_option_exists(section, names):
    record = loss_record if section == "Objectives" else miner_record
    checked = 0
    for first, row in rows(section).items():
        name = re.match(r"`([^`]+)`", first)[1]
        if name in names:
            options = named_options(row[4]) | named_options(row[5])
            known = record(name).defaults.keys() | BESIDES.get(name, set())
            assert options <= known, f"{name}: {options - known}"
            checked += 1
    assert checked >= (18 if section == "Objectives" else 6)


OF_THE_PAPERS = [
    *("contrastive", "triplet", "genlifted", "npair", "angular", "arcface", "histogram", "margin", "multisimilarity"),
    *("proxynca", "proxyanchor", "quadruplet", "snr", "softtriple", "normsoftmax"),
    *("ntxent", "supcon", "circle", "proxynca++", "smoothap", "crossbatch"),
]


def test_every_loss_of_the_papers_has_a_row():
    named = {re.match(r"`([^`]+)`", first)[1] for first in rows("Objectives")}
    assert set(OF_THE_PAPERS) <= named and set(OF_THE_PAPERS) <= set(list_losses())


@pytest.mark.parametrize(
    ("forms", "section"),
    [
        (recipe("revisiting").losses, "Objectives"),
        (recipe("revisiting").losses_of_dataset["sop"], "Objectives"),
        (recipe("revisiting").miners, "Miners"),
    ],
)
def test_protocols_choose_what_the_page_says(forms, section):
    table = rows(section)
    for name, form in forms.items():
        said = named_options(table[f"`{name}`"][5])
        assert form.keys() - {"miner", "base"} <= said, name
        for key, value in form.items():
            if key not in ("miner", "base"):
                stated = re.search(rf"\b{key}=([^`,]+)", table[f"`{name}`"][5])[1]
                assert eval(stated) == value, (name, key)
