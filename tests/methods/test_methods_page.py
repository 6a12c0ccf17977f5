"""docs/methods.md and the methods' table of docs/fidelity.md name only methods and options that exist."""

import re
from pathlib import Path

import pytest

import oodml
from oodml.methods import method_record

DOCS = Path(__file__).parents[2] / "docs"


def test_every_call_works():
    page = (DOCS / "methods.md").read_text(encoding="utf-8")
    calls = re.findall(r"oodml\.make_method\(.*\)", page)
    assert len(calls) >= 9
    for call in calls:
        eval(call, {"oodml": oodml})


@pytest.mark.parametrize("name", ["sharing", "diva", "uniform_prior", "mixup"])
def test_the_fidelity_page_names_options_that_exist(name):
    page = (DOCS / "fidelity.md").read_text(encoding="utf-8").partition("\n## Methods\n")[2]
    rows = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
    assert rows
    for row in rows:
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        assert len(cells) == 6
        named = {
            key for code in re.findall(r"`([^`]*=[^`]*)`", cells[4] + cells[5]) for key in re.findall(r"(\w+)=", code)
        }
        assert named <= method_record(name).defaults.keys(), row
