"""The commands about splits and shift, from pictures in folders to printed tables and written files."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from oodml import OodmlError
from oodml.cli._app import app
from oodml.cli._inputs import open_images, open_unlabelled
from oodml.shift import load_splits, save_splits

for module in (
    "splits",
    "shift",
    "audit",
    "evaluate",
    "datasets",
    "pretrained",
    "study",
    "study_score",
    "train",
):
    importlib.import_module(f"oodml.cli.{module}")


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, OodmlError):
        raise result.exception
    return result


def picture(hue: int, rng: np.random.Generator) -> Image.Image:
    """A blob of one colour on a noisy ground; its place differs from picture to picture."""
    pixels = rng.integers(0, 60, (40, 40, 3))
    x, y = rng.integers(4, 24, 2)
    pixels[y : y + 12, x : x + 12] = [(hue * 37) % 256, (hue * 91) % 256, (hue * 53 + 90) % 256]
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight classes of eight pictures, and a target folder of loose pictures, two of which are copies."""
    root = tmp_path_factory.mktemp("shift-cli")
    rng = np.random.default_rng(0)
    for c in range(8):
        (root / "zoo" / f"class{c}").mkdir(parents=True)
        for i in range(8):
            picture(c, rng).save(root / "zoo" / f"class{c}" / f"{i}.png")
    (root / "target").mkdir()
    for i in range(20):
        picture(20 + i % 3, rng).save(root / "target" / f"new{i}.png")
    for i in range(2):
        Image.open(root / "zoo" / "class3" / f"{i}.png").resize((50, 50)).save(root / "target" / f"copy{i}.png")
    return root


@pytest.fixture(autouse=True)
def own_cache(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OODML_CACHE", str(zoo / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def series(zoo: Path) -> Path:
    path = zoo / "splits.json"
    patch = pytest.MonkeyPatch()
    patch.setenv("OODML_CACHE", str(zoo / "cache"))
    built = run("splits", "build", zoo / "zoo", "-o", path, "-n", "3", "--reverse", "--backbone", "tiny")
    patch.undo()
    assert built.exit_code == 0, built.output
    return path


def test_build_writes_a_series_that_says_how_it_was_made(series: Path) -> None:
    splits = load_splits(series)
    assert len(splits) == 3
    assert {s.provenance["backbone"] for s in splits} == {"tiny"}
    assert {s.dataset for s in splits} == {"folder"}
    assert any(s.provenance["stage"] == "start" and s.train == [f"class{i}" for i in range(4)] for s in splits)
    assert len(splits.progression) >= 3


def test_show_prints_the_table_and_draws_both_pictures(zoo: Path, series: Path) -> None:
    shown = run("splits", "show", series, "--root", zoo / "zoo", "--out", zoo / "pictures", "--projection", "pca")
    assert shown.exit_code == 0
    for split in load_splits(series):
        assert f"{split.fid:.2f}" in shown.stdout
    assert "KID" in shown.stdout
    for name in ("progression.png", "map.png"):
        assert Image.open(zoo / "pictures" / name).size[0] > 300


def test_verify_accepts_what_is_true_and_tells_what_is_not(zoo: Path, series: Path) -> None:
    good = run("splits", "verify", series, "--root", zoo / "zoo")
    assert good.exit_code == 0
    assert good.stdout.count("as stated") == 3
    data = json.loads(series.read_text())
    data["splits"][1]["fid"] *= 1.1
    (zoo / "wrong.json").write_text(json.dumps(data))
    wrong = run("splits", "verify", zoo / "wrong.json", "--root", zoo / "zoo")
    assert isinstance(wrong.exception, OodmlError)
    assert "1 of 3 distances differ" in str(wrong.exception)
    data["splits"][0]["train"][0] = data["splits"][0]["val"][0] = "class-x"
    (zoo / "unknown.json").write_text(json.dumps(data))
    unknown = run("splits", "verify", zoo / "unknown.json", "--root", zoo / "zoo")
    assert "'class-x'" in str(unknown.exception)


def test_a_file_with_a_hash_in_its_name_is_a_file(zoo: Path, series: Path, tmp_path: Path) -> None:
    path = tmp_path / "s#1.json"
    shutil.copy(series, path)
    arguments = ("--root", zoo / "zoo", "--shots", "2", "--episodes", "1")
    assert run("splits", "episodes", path, *arguments).exit_code == 0
    written = load_splits(path)
    assert len(written) == 3 and all(split.episodes for split in written)
    one = run("splits", "episodes", f"{path}#{written[0].name}", *arguments)
    assert "need -o FILE" in str(one.exception) and load_splits(path) == written


def test_a_series_of_one_split_keeps_its_progression(zoo: Path, series: Path, tmp_path: Path) -> None:
    path, every = tmp_path / "one.json", load_splits(series)
    save_splits(path, every[:1])
    assert run("splits", "episodes", path, "--root", zoo / "zoo", "--shots", "2", "--episodes", "1").exit_code == 0
    written = load_splits(path)
    assert len(written) == 1 and written[0].episodes and written.progression == every.progression


def test_episodes_are_added_to_every_split(zoo: Path, series: Path) -> None:
    path = zoo / "episodes.json"
    arguments = ("--root", zoo / "zoo", "--shots", "2", "--shots", "3", "--episodes", "4", "-o", path)
    assert run("splits", "episodes", series, *arguments).exit_code == 0
    for split in load_splits(path):
        assert {shots: len(listed) for shots, listed in split.episodes.items()} == {2: 4, 3: 4}
    verified = run("splits", "verify", path, "--root", zoo / "zoo")
    assert verified.exit_code == 0
    assert "4×2, 4×3" in verified.stdout
    too_many = run("splits", "episodes", series, "--root", zoo / "zoo", "--shots", "8", "-o", zoo / "never.json")
    assert "8 shots need at least 9 images" in str(too_many.exception)
    assert not (zoo / "never.json").exists()


def test_splits_of_a_folder_find_it_again(zoo: Path, series: Path, tmp_path: Path) -> None:
    assert run("splits", "verify", series).exit_code == 0
    assert run("splits", "episodes", series, "--shots", "2", "-o", tmp_path / "episodes.json").exit_code == 0
    told = json.loads(series.read_text())
    for split in told["splits"]:
        split["provenance"]["root"] = str(tmp_path / "gone")
    (tmp_path / "moved.json").write_text(json.dumps(told))
    lost = run("splits", "verify", tmp_path / "moved.json")
    assert f"no longer at {tmp_path / 'gone'}: give it with --root" in str(lost.exception)
    assert run("splits", "verify", tmp_path / "moved.json", "--root", zoo / "zoo").exit_code == 0


def test_a_split_across_two_folders_names_them_by_their_places(zoo: Path, tmp_path: Path) -> None:
    shutil.copytree(zoo / "zoo", tmp_path / "other")
    file = tmp_path / "across.json"
    made = run("splits", "across", zoo / "zoo", tmp_path / "other", "-o", file, "--backbone", "tiny")
    assert made.exit_code == 0, made.output
    (split,) = load_splits(file)
    assert (split.name, split.test_dataset) == ("zoo-to-other", str(tmp_path / "other"))
    assert run("splits", "verify", file).exit_code == 0
    same = run("splits", "across", zoo / "zoo", zoo / "zoo", "-o", file, "--backbone", "tiny")
    assert "give splits of two different datasets" in str(same.exception)


def test_show_draws_nothing_for_a_projection_that_is_none(series: Path, tmp_path: Path) -> None:
    shown = run("splits", "show", series, "--projection", "foo", "--out", tmp_path)
    assert "Unknown projection 'foo'" in str(shown.exception) and not list(tmp_path.iterdir())


def test_an_empty_target_is_not_asked_for_classes(zoo: Path, tmp_path: Path) -> None:
    shown = run("shift", zoo / "zoo", tmp_path)
    assert str(shown.exception).endswith("give a folder that has some, with or without class folders.")


def test_features_take_a_path_and_evaluate_reads_what_they_write(zoo: Path, tmp_path: Path) -> None:
    file = tmp_path / "features.npz"
    assert run("features", zoo / "zoo", "--backbone", "tiny", "-o", file).exit_code == 0
    assert "scored: 64 images of 8 classes" in run("evaluate", file, "--metrics", "recall@1").stdout
    with np.load(file) as written:
        assert set(written) == {"embeddings", "labels", "classes"}
    assert "written as .npz" in str(run("features", zoo / "zoo", "-o", tmp_path / "features.txt").exception)
    assert run("features", zoo / "zoo", "--backbone", "tiny", "-o", tmp_path / "plain").exit_code == 0
    assert (tmp_path / "plain.npz").exists() and not (tmp_path / "features.txt.npz").exists()


def test_official_episodes_are_taken_over_or_refused(zoo: Path) -> None:
    entry = {"train": ["class0", "class1"], "test": ["class2", "class3"]}
    (zoo / "theirs.json").write_text(json.dumps({"folder": {"1": entry}}))
    run("splits", "import", zoo / "theirs.json", "folder", "-o", zoo / "official-folder.json")
    for known in (True, False):
        names = ["0.jpg", "3.jpg"] if known else ["00001.jpg", "00003.jpg"]
        content = {"folder": {"1": {"2": [{"class2": names, "class3": names}]}}}
        (zoo / "few.json").write_text(json.dumps(content))
        path = zoo / f"taken-{known}.json"
        arguments = ("--root", zoo / "zoo", "--official", zoo / "few.json", "-o", path)
        shown = run("splits", "episodes", zoo / "official-folder.json", *arguments)
        if known:
            assert "4 of 4 file names found, 1 of 1 episodes" in shown.stdout
            expected = {c: [f"{c}/0.png", f"{c}/3.png"] for c in ("class2", "class3")}
            assert load_splits(path)[0].episodes == {2: [expected]}
        else:
            assert "0 of 4 file names found" in shown.stdout
            assert "No official episode" in str(shown.exception)
            assert not path.exists()


def test_iid_is_printed_next_to_the_default_split(zoo: Path) -> None:
    shown = run("splits", "iid", zoo / "zoo", "--backbone", "tiny", "--repeats", "4")
    assert shown.exit_code == 0
    assert "4 random halves" in shown.stdout
    assert "±" in shown.stdout


def test_compare_tells_how_far_two_networks_agree(zoo: Path) -> None:
    shown = run("splits", "compare", zoo / "zoo", "tiny", "tiny", "-n", "3")
    assert shown.exit_code == 0
    assert "Rank correlation of the distances: 1.000" in shown.stdout
    assert "100 %" in shown.stdout


def test_official_splits_are_imported(zoo: Path) -> None:
    official = {"cars196": {"1": {"train": ["a", "b"], "test": ["c"], "fid": 8.59, "split_val": ["a"]}}}
    (zoo / "official_in.json").write_text(json.dumps(official))
    shown = run("splits", "import", zoo / "official_in.json", "cars196", "-o", zoo / "official.json")
    assert "8.59" in shown.stdout
    assert load_splits(zoo / "official.json")[0].name == "official-1"


def test_shift_places_a_folder_of_loose_pictures_and_names_shared_ones(zoo: Path) -> None:
    shown = run("shift", zoo / "zoo", zoo / "target", "--backbone", "tiny", "-n", "3")
    assert shown.exit_code == 0
    assert "FID over images" in shown.stdout
    assert "TARGET" in shown.stdout
    assert "2 of 22 target images are in the training set too" in shown.stdout
    for i in range(2):
        assert f"class3/{i}.png" in shown.stdout
        assert f"copy{i}.png" in shown.stdout


def test_a_target_of_linked_class_folders_is_read(zoo: Path, tmp_path: Path) -> None:
    for c in range(2):
        (tmp_path / f"class{c}").symlink_to(zoo / "zoo" / f"class{c}")
    assert len(open_images(str(tmp_path))) == 16


def test_a_shift_to_one_picture_is_refused_in_words_of_pictures(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(zoo / "target" / "new0.png", tmp_path / "new0.png")
    for i in range(3):
        (tmp_path / f"broken{i}.png").write_text("no picture")
    described = []
    monkeypatch.setattr("oodml.cli.shift.describe", lambda *arguments: described.append(arguments))
    told = str(run("shift", zoo / "zoo", tmp_path, "--backbone", "tiny").exception)
    assert not described  # refused before minutes are spent on features
    assert told.endswith(f"{tmp_path} has 1 that can be read. Give at least 3, better 50 or more.")


def test_a_shift_to_three_pictures_is_measured_and_called_rough(zoo: Path, tmp_path: Path) -> None:
    for i in range(3):
        shutil.copy(zoo / "target" / f"new{i}.png", tmp_path)
    shown = run("shift", zoo / "zoo", tmp_path, "--backbone", "tiny")
    assert shown.exit_code == 0, shown.exception
    assert "FID over images, 2 per side" in shown.stdout
    assert "The target has 3 images" in shown.stderr and "are rough" in shown.stderr


def test_a_link_to_nothing_among_loose_pictures_is_named(zoo: Path, tmp_path: Path) -> None:
    shutil.copytree(zoo / "target", tmp_path / "target")
    (tmp_path / "target" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    shown = run("shift", zoo / "zoo", tmp_path / "target", "--backbone", "tiny")
    assert "1 of 23 images" in shown.stderr and "gone.png" in shown.stderr


def test_every_picture_of_a_target_counts_wherever_it_lies(zoo: Path, tmp_path: Path) -> None:
    """Its labels are not needed: of loose pictures beside a folder only the folder's were used, without a word."""
    shutil.copytree(zoo / "target", tmp_path / "target")
    for place in ("more", "more/deep", "other"):
        (tmp_path / "target" / place).mkdir()
        shutil.copy(zoo / "target" / "new0.png", tmp_path / "target" / place / "again.png")
    target = open_unlabelled(str(tmp_path / "target"))
    assert len(target) == 25 and target.classes == ["images"]
    assert (
        len(open_unlabelled("folder", zoo / "zoo")) == len(open_unlabelled(str(tmp_path / "target"), zoo / "zoo")) == 64
    )
    assert "64 and 25" in run("shift", zoo / "zoo", tmp_path / "target", "--backbone", "tiny").stdout
    (tmp_path / "empty").mkdir()
    with pytest.raises(OodmlError, match=r"No images .*with or without class folders"):
        open_unlabelled(str(tmp_path / "empty"))


def test_hidden_files_beside_loose_pictures_are_no_pictures(zoo: Path, tmp_path: Path) -> None:
    shutil.copytree(zoo / "target", tmp_path / "target")
    (tmp_path / "target" / "._new0.png").write_bytes(b"what macOS leaves on other disks")
    assert len(open_images(str(tmp_path / "target"))) == 22


def test_shift_without_classes_still_measures(zoo: Path) -> None:
    shown = run("shift", zoo / "target", zoo / "target", "--backbone", "tiny")
    assert shown.exit_code == 0
    assert "0.00" in shown.stdout
    assert "no splits to compare" in shown.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("shift", "xyzzy", "glyphs"),
        ("audit", ".", "--target", "xyzzy"),
        ("pretrained", "xyzzy"),
        ("study", "forecast", ".", "xyzzy"),
        ("splits", "iid", "xyzzy"),
    ],
)
def test_a_mistyped_path_is_answered_as_a_path(command: tuple[str, ...]) -> None:
    told = str(run(*command).exception)
    assert told.startswith("'xyzzy' is not a dataset (cars196, ")
    assert "Check the path." in told


def test_a_mistyped_data_set_is_answered_with_the_nearest_name() -> None:
    assert "Did you mean 'glyphs'?" in str(run("shift", "gliphs", "glyphs").exception)


@pytest.mark.parametrize(
    "option", [("--cosine", "5"), ("--likeness", "1.5"), ("--n-splits", "0"), ("--draws", "19"), ("--shown", "-1")]
)
def test_shift_refuses_bounds_that_mean_nothing(zoo: Path, option: tuple[str, str]) -> None:
    refused = CliRunner().invoke(app, ["shift", str(zoo / "zoo"), str(zoo / "target"), "--backbone", "tiny", *option])
    assert refused.exit_code == 2 and option[0] in refused.stderr


@pytest.fixture
def damaged(zoo: Path, tmp_path: Path) -> Path:
    """The zoo with a picture that cannot be read, in a class whose name looks like the markup of the console."""
    shutil.copytree(zoo / "zoo", tmp_path / "zoo")
    (tmp_path / "zoo" / "class0").rename(tmp_path / "zoo" / "[red]")
    (tmp_path / "zoo" / "[red]" / "0.png").write_bytes(b"no picture")
    return tmp_path / "zoo"


def said_once_and_plainly(shown: Result) -> bool:
    told = " ".join(shown.stderr.split())
    place = ".py:" in told or "UserWarning" in told
    return told.count("warning: 1 of 64 images of 'folder' cannot be read: [red]/0.png") == 1 and not place


def test_a_picture_that_cannot_be_read_is_named_and_left_out(damaged: Path, zoo: Path) -> None:
    shown = run("shift", damaged, zoo / "target", "--backbone", "tiny", "-n", "3")
    assert shown.exit_code == 0, shown.exception
    assert said_once_and_plainly(shown) and "63 and 22" in shown.stdout
    assert "2 of 22 target images are in the training set too" in shown.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("features", "folder", "--backbone", "tiny", "--root"),
        pytest.param(("pretrained", "--backbone", "tiny"), marks=pytest.mark.long),
        pytest.param(
            ("train", "--backbone", "tiny", "--steps", "1", "--set", "batch_size=8", "--quiet", "--root"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_warnings_do_not_show_the_place_in_the_program(damaged: Path, command: tuple[str, ...]) -> None:
    out = ("--out", damaged.parent / "run") if command[0] == "train" else ()
    shown = run(*command, damaged, *out)
    assert shown.exit_code == 0, shown.exception
    assert said_once_and_plainly(shown), shown.stderr


def test_splits_of_a_damaged_folder_are_not_taken_for_another_copy(damaged: Path) -> None:
    path = damaged.parent / "splits.json"
    assert run("splits", "build", damaged, "-o", path, "-n", "3", "--backbone", "tiny").exit_code == 0
    verified = run("splits", "verify", path, "--root", damaged)
    assert verified.exit_code == 0 and "another copy" not in verified.stderr
