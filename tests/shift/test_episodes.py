"""Few-shot episodes: exactly N support images a class, every other image a query."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import oodml
from oodml import OodmlError, Split, make_episodes
from oodml.data import ArraySource, build_dataset
from oodml.shift import episode_indices, resolve_episodes, save_splits


@dataclass
class Images:
    """A data set, as far as episodes are concerned."""

    labels: np.ndarray
    classes: list[str]

    def path(self, i: int) -> str:
        return f"{self.classes[self.labels[i]]}/{i:05d}.webp"


SIZES = [4, 7, 5, 9, 6]
DS = Images(np.random.default_rng(0).permutation(np.repeat(np.arange(5), SIZES)), ["a", "b", "c", "d", "e"])
SPLIT = Split(train=["a", "c"], test=["e", "b", "d"], name="mine")


def test_support_and_query_share_out_the_test_images() -> None:
    split = make_episodes(SPLIT, DS, shots=3, episodes=4)
    assert split.train == SPLIT.train
    assert len(split.episodes[3]) == 4
    test = np.flatnonzero(np.isin(DS.labels, [1, 3, 4]))
    for number in range(4):
        support, query = episode_indices(split, DS, 3, number)
        assert np.array_equal(np.sort(np.concatenate([support, query])), test)
        assert np.bincount(DS.labels[support], minlength=5).tolist() == [0, 3, 0, 3, 3]


def test_episodes_differ_repeat_with_the_seed_and_survive_a_file(tmp_path: Path) -> None:
    split = make_episodes(SPLIT, DS, shots=2, episodes=5, seed=3)
    assert split == make_episodes(SPLIT, DS, shots=2, episodes=5, seed=3)
    assert split != make_episodes(SPLIT, DS, shots=2, episodes=5, seed=4)
    assert len({str(episode) for episode in split.episodes[2]}) == 5
    split.save(tmp_path / "split.json")
    assert Split.load(tmp_path / "split.json") == split


def test_more_episodes_keep_the_first_and_other_shots_stay() -> None:
    few = make_episodes(SPLIT, DS, shots=2, episodes=2)
    more = make_episodes(make_episodes(SPLIT, DS, shots=5), DS, shots=2, episodes=6)
    assert more.episodes[2][:2] == few.episodes[2]
    assert sorted(more.episodes) == [2, 5]


def test_classes_that_are_too_small_are_named() -> None:
    with pytest.raises(OodmlError, match=r"6 shots need at least 7 images .* 'e' \(6\)\."):
        make_episodes(SPLIT, DS, shots=6)


def test_bad_requests_are_named() -> None:
    with pytest.raises(OodmlError, match="at least 1"):
        make_episodes(SPLIT, DS, shots=0)
    with pytest.raises(OodmlError, match="Unknown test class of split 'mine': 'z'"):
        make_episodes(Split(["a"], ["z"], name="mine"), DS)
    with pytest.raises(OodmlError, match=r"no episodes of 4 shots \(it has: 2\)"):
        episode_indices(make_episodes(SPLIT, DS, shots=2), DS, 4, 0)
    with pytest.raises(OodmlError, match="0 to 9; got 10"):
        episode_indices(make_episodes(SPLIT, DS, shots=2), DS, 2, 10)


def test_images_of_another_copy_are_noticed() -> None:
    split = make_episodes(SPLIT, DS, shots=2)
    fewer = Images(DS.labels[:15], DS.classes)
    with pytest.raises(OodmlError, match="are not in the dataset, for instance"):
        episode_indices(split, fewer, 2, 0)


def test_published_episodes_are_taken_over_where_every_name_resolves() -> None:
    made = make_episodes(SPLIT, DS, shots=2, episodes=3)
    published = [
        {c: [f"elsewhere/{Path(n).stem}.jpg" for n in names] for c, names in e.items()} for e in made.episodes[2]
    ]
    published[1]["b"] = ["lost.jpg", published[1]["b"][1]]
    taken = resolve_episodes(SPLIT, DS, {2: published})
    assert (taken.found, taken.asked, taken.complete, taken.offered) == (17, 18, 2, 3)
    assert taken.split.episodes[2] == [made.episodes[2][0], made.episodes[2][2]]


def test_the_default_split_of_a_dataset_and_a_path_are_splits_too(tmp_path: Path) -> None:
    source = ArraySource(np.zeros((12, 8, 8, 3), np.uint8), [f"{i}.png" for i in range(12)])
    ds = build_dataset("blank", source, [f"class{i // 3}" for i in range(12)])
    made = oodml.make_episodes(ds.default_split, ds, shots=2, episodes=1)
    assert isinstance(ds.default_split, Split) and (made.name, made.dataset) == ("default", "blank")
    assert sorted(made.episodes[2][0]) == made.test == ["class2", "class3"]
    assert oodml.RunConfig(split=ds.default_split).split == ds.default_split
    save_splits(tmp_path / "splits.json", [SPLIT])
    assert make_episodes(f"{tmp_path}/splits.json#mine", DS, shots=2) == make_episodes(SPLIT, DS, shots=2)
    assert oodml.load_splits(tmp_path / "splits.json") == [SPLIT]
    alone = build_dataset("blank", source, ["one"] * 12)
    with pytest.raises(OodmlError, match="needs classes on both sides"):
        _ = alone.default_split
