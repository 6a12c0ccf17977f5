"""A dataset is opened by its name, by the path of a folder or tar, or by settings that hold one of the two."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import oodml
from oodml import OodmlError, load_dataset
from oodml.data import load_unlabelled


def same(one, other):
    return one.fingerprint == other.fingerprint and one.name == other.name


def test_a_dataset_is_opened_by_its_path(birds: Path, monkeypatch):
    by_name = load_dataset("folder", root=birds)
    monkeypatch.chdir(birds.parent)
    for path in (str(birds), birds, birds.name, f"./{birds.name}"):
        assert same(load_dataset(path), by_name), path
    assert same(load_dataset({"name": str(birds)}), by_name)
    assert same(load_dataset({"name": "folder", "root": birds}), by_name)
    assert same(load_dataset(str(birds), images_per_class=2), by_name.sample(2))
    assert same(load_dataset({"name": str(birds), "images_per_class": 2}), by_name.sample(2))


def test_a_tar_is_opened_by_its_path(birds: Path, tmp_path: Path):
    path = tmp_path / "birds.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(birds, "birds")
    assert load_dataset(path).classes == load_dataset(birds).classes


def test_a_registered_name_is_preferred_to_a_folder_of_that_name(birds: Path, glyphs, monkeypatch):
    birds.rename(birds.parent / "glyphs")
    monkeypatch.chdir(birds.parent)
    assert load_dataset("glyphs").source.place == ""
    assert load_dataset("./glyphs").name == "folder"


@pytest.mark.parametrize("dataset", ["glyfs", {"name": "glyfs"}])
def test_what_is_neither_a_name_nor_a_path_is_refused(dataset):
    with pytest.raises(OodmlError, match=r"'glyfs' is not a dataset \(.*glyphs.*\).* Did you mean 'glyphs'"):
        load_dataset(dataset)


def test_a_missing_path_says_where_it_was_looked_for(tmp_path: Path):
    with pytest.raises(OodmlError, match=r"No folder or tar at .*nowhere"):
        load_dataset(str(tmp_path / "nowhere"))


def test_a_run_and_its_identity_take_a_path(birds: Path):
    by_path, by_name = (oodml.RunConfig(dataset=way) for way in (str(birds), {"name": "folder", "root": str(birds)}))
    assert by_path.hash() == by_name.hash() == oodml.RunConfig(dataset=birds).hash()
    assert by_path.dataset == {"name": "folder", "root": str(birds)}
    assert oodml.RunConfig(dataset="glyphs").dataset == "glyphs"


def test_images_without_labels_are_one_class(birds: Path, glyphs):
    ds = load_unlabelled(birds)
    assert len(ds) == len(load_dataset(birds)) and ds.classes == ["images"]
    assert load_unlabelled("glyphs").classes == glyphs.classes
