from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from oodml import OodmlError
from oodml.data import load_dataset
from oodml.data.sets.published import CARS, CUB, body_type, verified

pytestmark = pytest.mark.filterwarnings("ignore:.*single image")  # the copies made here are tiny
CARS_CLASSES = ["Acura RL Sedan 2012", "Ram C/V Cargo Van Minivan 2012", "AM General Hummer SUV 2000"]


def save(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)


@pytest.fixture
def cub(tmp_path: Path) -> Path:
    """A tiny CUB in the official layout, one listed image missing."""
    top = tmp_path / "data" / "cub200" / "CUB_200_2011"
    names = [f"{c}/{c[4:]}_{i}.jpg" for c in ("001.Black_footed_Albatross", "002.Blue_Jay") for i in range(2)]
    for name in names[:3]:
        save(top / "images" / name)
    (top / "images.txt").write_text("".join(f"{i + 1} {n}\n" for i, n in enumerate(names)))
    return tmp_path / "data"


def test_cub_official_layout_is_found_below_the_environment_variable(cub: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OODML_DATA", str(cub))
    with pytest.warns(UserWarning, match=r"not the published one: 2 classes instead of 200 \(-198\).*Jay_1\.jpg"):
        ds = load_dataset("cub200")
    assert ds.classes == ["001.Black_footed_Albatross", "002.Blue_Jay"]
    assert ds.superclasses == ["Albatross", "Jay"] and "derived" in ds.notes[0]
    assert ds.path(0) == "001.Black_footed_Albatross/Black_footed_Albatross_0.jpg"


@pytest.mark.parametrize("below", ["cub200", "cub200/CUB_200_2011", "cub200/CUB_200_2011/images"])
def test_cub_root_may_be_any_of_its_folders(cub: Path, below: str):
    with pytest.warns(UserWarning, match="not the published one"):
        assert len(load_dataset("cub200", root=cub / below)) == 3


def test_strict_makes_an_incomplete_copy_an_error(cub: Path):
    with pytest.raises(OodmlError, match="3 images instead of 11,788"):
        load_dataset("cub200", root=cub / "cub200", strict=True)


def test_a_missing_set_names_address_layout_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OODML_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OodmlError) as error:
        load_dataset("cub200")
    for part in ("https://www.vision.caltech.edu/datasets/cub_200_2011/", "CUB_200_2011/images/"):
        assert part in str(error.value)
    assert str(tmp_path / "data" / "cub200") in str(error.value)
    with pytest.raises(OodmlError, match=r"https://ai\.stanford\.edu/~jkrause/cars/car_dataset\.html"):
        load_dataset("cars196", root=tmp_path / "else")


def annotations(field: str, rows: list[tuple[str, int]]) -> np.ndarray:
    return np.array(rows, dtype=[(field, object), ("class", object)])


def test_cars_from_car_ims_and_its_annotations(tmp_path: Path):
    rows = [("car_ims/000001.jpg", 3), ("car_ims/000002.jpg", 1), ("car_ims/000003.jpg", 2), ("car_ims/000004.jpg", 2)]
    for name, _ in rows[:3]:
        save(tmp_path / name)
    names = np.array(CARS_CLASSES, dtype=object)
    savemat(tmp_path / "cars_annos.mat", {"annotations": annotations("relative_im_path", rows), "class_names": names})
    with pytest.warns(UserWarning, match="000004.jpg"):
        ds = load_dataset("cars196", root=tmp_path)
    assert ds.classes == ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Ram C-V Cargo Van Minivan 2012"]
    assert [ds.path(i) for i in range(3)] == ["car_ims/000001.jpg", "car_ims/000002.jpg", "car_ims/000003.jpg"]
    assert ds.superclasses == ["SUV", "Sedan", "Minivan"]


def test_cars_from_train_and_test_folders_with_the_devkit(tmp_path: Path):
    (tmp_path / "devkit").mkdir()
    for name in ("cars_train/00001.jpg", "cars_test/00001.jpg"):
        save(tmp_path / name)
    savemat(tmp_path / "devkit" / "cars_meta.mat", {"class_names": np.array(CARS_CLASSES, dtype=object)})
    table = {"annotations": annotations("fname", [("00001.jpg", 1)])}
    savemat(tmp_path / "devkit" / "cars_train_annos.mat", table)
    with pytest.raises(OodmlError, match=r"has no cars_test_annos_withlabels\.mat"):
        load_dataset("cars196", root=tmp_path)
    savemat(tmp_path / "cars_test_annos_withlabels.mat", {"annotations": annotations("fname", [("00001.jpg", 2)])})
    with pytest.warns(UserWarning, match="not the published one"):
        ds = load_dataset("cars196", root=tmp_path)
    assert {ds.path(i): ds.classes[ds.labels[i]] for i in range(2)} == {
        "cars_train/00001.jpg": "Acura RL Sedan 2012",
        "cars_test/00001.jpg": "Ram C-V Cargo Van Minivan 2012",
    }


def test_a_broken_annotation_file_is_one_sentence(tmp_path: Path):
    (tmp_path / "cars_annos.mat").write_text("nothing")
    with pytest.raises(OodmlError, match="cannot be read as a MATLAB file"):
        load_dataset("cars196", root=tmp_path)


@pytest.mark.parametrize(
    ("name", "body"),
    [("Acura RL Sedan 2012", "Sedan"), ("Dodge Ram Pickup 3500 Crew Cab 2010", "Cab"), ("smart fortwo 2012", "fortwo")],
)
def test_body_type_is_the_last_word_before_the_year(name: str, body: str):
    assert body_type(name) == body


@pytest.mark.real
def test_real_cub_is_complete(real_data: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = load_dataset("cub200", root=real_data, strict=True)
    assert (len(ds), len(ds.classes)) == (11788, 200)
    train, test = ds.default_split.train, ds.default_split.test
    assert (len(ds.indices_of(train)), len(ds.indices_of(test))) == (5864, 5924)
    assert ds.superclasses[0] == "Albatross" and ds.image(5000).mode == "RGB"


@pytest.mark.real
def test_real_cars_copy_lacks_fifteen_images_and_says_so(real_data: Path):
    with pytest.warns(UserWarning, match=r"16,170 images instead of 16,185 \(-15\)"):
        ds = load_dataset("cars196", root=real_data / "cars196.tar")
    assert len(ds.classes) == 196 and ds.default_split.train[-1] < ds.default_split.test[0]
    assert verified(ds.subset(range(5)), CUB, strict=False).warnings and CARS.train_images + CARS.test_images == 16185
