"""The published CARS196 splits in a study: found by the preset, with the published FIDs."""

from pathlib import Path

import pytest

import oodml
from oodml.study.presets import load_preset
from oodml.study.published import published_fids
from oodml.study.settings import OfficialSplits
from oodml.study.splits import official_splits

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
FILE = SHARED / "oodml_official_splits.json"


@pytest.fixture
def shared(monkeypatch):
    if not FILE.exists():
        pytest.skip(f"no official splits at {FILE}")
    monkeypatch.setenv("OODML_DATA", str(SHARED))


@pytest.mark.real
def test_the_preset_finds_the_published_splits(shared):
    wanted = load_preset("zero-shot-cars196").splits
    splits = official_splits(wanted, "cars196")
    assert [split.name for split in splits] == [f"official-{i}" for i in range(1, 9)]
    # Split 6 is stored with 86.12 and printed as 86.48; the others agree to the printed digits.
    fids = [split.fid for split in splits]
    assert fids == pytest.approx(published_fids("cars196"), abs=0.4)
    assert fids[:5] == pytest.approx(published_fids("cars196")[:5], abs=0.006)


@pytest.mark.real
def test_some_of_them_can_be_chosen_and_others_are_named_as_missing(shared):
    chosen = official_splits(OfficialSplits(official=FILE.name, ids=[8, 1]), "cars196")
    assert [split.name for split in chosen] == ["official-8", "official-1"]
    with pytest.raises(oodml.OodmlError, match=r"has no splits \[9\] of cars196"):
        official_splits(OfficialSplits(official=FILE.name, ids=[9]), "cars196")
