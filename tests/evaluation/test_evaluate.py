"""`oodml.evaluate` as a user meets it: inputs, notes, errors, classes, label sets, indexes, peers, command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import FaissKNN
from safetensors.numpy import save_file
from typer.testing import CliRunner

import oodml
import oodml.cli.evaluate
from oodml.cli import app
from oodml.evaluation import Scores
from oodml.evaluation.metrics import METRICS


def clustered(n: int = 300, classes: int = 12, d: int = 16, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), np.arange(classes), rng.integers(0, classes, n - 2 * classes)])
    x = rng.normal(size=(classes, d))[labels] + rng.normal(size=(n, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels


def test_scores_agree_with_pytorch_metric_learning() -> None:
    x, labels = clustered(800, 40)
    calculator = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=torch.device("cpu"),
        knn_func=FaissKNN(),
    )
    peer = calculator.get_accuracy(torch.from_numpy(x), torch.from_numpy(labels))
    ours = oodml.evaluate(x, labels, ["recall@1", "r-precision", "map@r"])
    assert ours["recall@1"] == pytest.approx(peer["precision_at_1"], abs=1e-6)
    assert ours["r-precision"] == pytest.approx(peer["r_precision"], abs=1e-6)
    assert ours["map@r"] == pytest.approx(peer["mean_average_precision_at_r"], abs=1e-6)


def test_the_same_scores_from_arrays_tensors_lists_and_any_labels() -> None:
    x, labels = clustered(120, 6)
    metrics = ["recall@1", "map@r", "map@c", "nmi"]
    first = oodml.evaluate(x, labels, metrics)
    assert oodml.evaluate(torch.from_numpy(x).double().requires_grad_(), torch.from_numpy(labels), metrics) == first
    assert oodml.evaluate(x.tolist(), [f"class {i:02d}" for i in labels], metrics) == first
    assert oodml.evaluate(x, labels * 1000 - 77, metrics) == first


def test_the_result_is_a_plain_dict_of_fractions_with_its_search() -> None:
    x, labels = clustered(120, 6)
    scores = oodml.evaluate(x, labels)
    assert isinstance(scores, dict) and json.loads(json.dumps(scores)) == scores
    assert all(isinstance(value, float) and 0 <= value <= 1 for value in scores.values())
    assert scores.neighbours is not None and scores.neighbours.indices.shape[0] == 120
    nearest = scores.neighbours.indices[:, 0].numpy()
    assert scores["recall@1"] == pytest.approx((labels[nearest] == labels).mean())
    assert scores.notes == {}


def test_only_the_neighbours_to_keep_are_kept_and_metrics_do_not_change() -> None:
    x, labels = clustered(120, 6)
    scores = oodml.evaluate(x, labels, ["recall@100", "map@1000"], keep=3)
    assert (
        scores.neighbours is not None and scores.neighbours.k == 3 and "3 of the 119" in scores.notes["neighbours_kept"]
    )
    assert scores == oodml.evaluate(x, labels, ["recall@100", "map@1000"])


def test_normalise_is_dividing_by_the_norm() -> None:
    x, labels = clustered(200, 10)
    stretched = x * np.random.default_rng(0).uniform(0.2, 5, (200, 1)).astype(np.float32)
    plain = oodml.evaluate(x, labels, ["map@r"])
    assert oodml.evaluate(stretched, labels, ["map@r"], normalise=True) == pytest.approx(plain, abs=1e-6)
    assert oodml.evaluate(stretched, labels, ["map@r"])["map@r"] < plain["map@r"] - 0.01


def test_one_point_a_class_has_defined_answers_and_a_warning() -> None:
    with pytest.warns(UserWarning, match="is undefined: reported as 0"):
        scores = oodml.evaluate(np.eye(4), [0, 1, 2, 3], ["recall@1", "map@r"])
    assert scores == {"recall@1": 0.0, "map@r": 0.0}
    assert scores.notes["singletons"] == 4 and scores.notes["undefined"] == ["map@r"]


def test_two_points_and_one_class() -> None:
    scores = oodml.evaluate([[0.0], [1.0]], ["a", "a"])
    assert {scores[name] for name in ("recall@1", "map@r", "map@c", "map@1000", "r-precision")} == {1.0}
    assert [name for name in scores if name.startswith("recall")] == ["recall@1"]


def test_per_class_and_per_superclass_means_join_to_the_score() -> None:
    x, labels = clustered(200, 8)
    scores = oodml.evaluate(x, labels, ["recall@1", "map@r"], superclasses=["even", "odd"] * 4)
    nearest = scores.neighbours.indices[:, 0].numpy() if scores.neighbours else None
    for name, value in scores.per_class().items():
        rows = labels == name
        assert value == pytest.approx((labels[nearest][rows] == name).mean())
    sizes = np.bincount(labels)
    by_class = scores.per_class("map@r")
    assert np.average([by_class[i] for i in range(8)], weights=sizes) == pytest.approx(scores["map@r"])
    odd = np.average([by_class[i] for i in (1, 3, 5, 7)], weights=sizes[1::2])
    assert scores.per_superclass("map@r") == pytest.approx({"odd": odd, "even": scores.per_superclass("map@r")["even"]})


def test_classes_without_a_query_that_counts_are_left_out() -> None:
    scores = oodml.evaluate([[0.0], [1.0], [5.0]], ["a", "a", "lonely"], ["recall@1", "map@r"])
    assert scores.per_class("map@r") == {"a": 1.0}
    assert scores.per_class("recall@1") == {"a": 1.0, "lonely": 0.0}


def test_the_interval_is_that_of_resampled_classes() -> None:
    x, labels = clustered(400, 20)
    scores = oodml.evaluate(x, labels, ["recall@1"])
    low, high = scores.interval("recall@1", draws=4000)
    rng = np.random.default_rng(1)
    groups = [scores.per_query["recall@1"].numpy()[labels == c] for c in range(20)]
    slow = [np.concatenate([groups[i] for i in rng.integers(0, 20, 20)]).mean() for _ in range(4000)]
    assert (low, high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=0.01)
    assert low < scores["recall@1"] < high
    assert scores.interval("recall@1", draws=100) == scores.interval("recall@1", draws=100)
    with pytest.raises(oodml.OodmlError, match="recall@1"):
        scores.interval("recall@9")


def shares(a: list[set], b: list[set]) -> np.ndarray:
    return np.array([[bool(s & t) for t in b] for s in a])


def test_label_sets_a_label_matrix_and_a_relevance_matrix_agree_with_brute_force() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    sets = [set(rng.choice(90, size=rng.integers(0, 4), replace=False).tolist()) for _ in range(60)]
    relevant = shares(sets, sets)
    np.fill_diagonal(relevant, False)
    far = ((x[:, None].astype(float) - x[None]) ** 2).sum(-1)
    np.fill_diagonal(far, np.inf)
    hits = np.take_along_axis(relevant, far.argsort(1, kind="stable"), 1)[:, :-1]
    wanted_recall = hits[:, :3].any(1).mean()
    aps = [
        sum(row[: r + 1].sum() / (r + 1) for r in range(row.sum()) if row[r]) / row.sum() for row in hits if row.any()
    ]
    matrix = np.zeros((60, 90), dtype=bool)
    for i, each in enumerate(sets):
        matrix[i, list(each)] = True
    metrics = ["recall@3", "map@r"]
    wanted = {"recall@3": wanted_recall, "map@r": np.mean(aps)}
    assert oodml.evaluate(x, sets, metrics) == pytest.approx(wanted, abs=1e-6)
    assert oodml.evaluate(x, matrix, metrics) == pytest.approx(wanted, abs=1e-6)
    assert oodml.evaluate(x, None, metrics, relevance=shares(sets, sets)) == pytest.approx(wanted, abs=1e-6)
    assert oodml.evaluate(x, sets, metrics).notes["singletons"] == int((~relevant.any(1)).sum())
    with pytest.raises(oodml.OodmlError, match="one label per row"):
        oodml.evaluate(x, sets, ["nmi"])
    with pytest.raises(oodml.OodmlError, match="one label per row"):
        oodml.evaluate(x, sets, metrics).per_class("map@r")


def test_label_sets_against_a_gallery() -> None:
    q, g = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)
    scores = oodml.evaluate(q, [{"a"}, {"b", "c"}, {"d"}], ["recall@1"], g, [["a", "x"], ["c"], ["e"]])
    assert scores["recall@1"] == pytest.approx(2 / 3) and scores.notes["singletons"] == 1


def test_an_index_is_searched_and_labelled_as_approximate() -> None:
    x, labels = clustered(400, 20)
    metrics = ["recall@1", "recall@10", "map@r"]
    flat = faiss.IndexFlatL2(16)
    flat.add(x)
    exact = oodml.evaluate(x, labels, metrics)
    scores = oodml.evaluate(x, labels, metrics, index=flat)
    assert scores == pytest.approx(exact, abs=1e-6)
    assert "IndexFlatL2" in scores.notes["approximate"] and scores.neighbours and not scores.neighbours.exact
    assert scores.neighbours.distances[:, 0].numpy() == pytest.approx(
        exact.neighbours.distances[:, 0].numpy(), abs=1e-3
    )
    inner = faiss.IndexFlatIP(16)
    inner.add(x)
    assert oodml.evaluate(x, labels, metrics, index=inner) == pytest.approx(exact, abs=1e-6)
    clusters = faiss.IndexIVFFlat(faiss.IndexFlatL2(16), 16, 40)
    clusters.train(x)
    clusters.add(x)
    rough = oodml.evaluate(x, labels, metrics, index=clusters)  # lists too short for recall@10 leave places empty
    assert (rough.neighbours.indices == -1).any() and rough["recall@10"] < exact["recall@10"]
    with pytest.raises(oodml.OodmlError, match="400 × 16"):
        oodml.evaluate(x[:300], labels[:300], metrics, index=flat)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.0], [float("nan")], [1.0], [float("inf")]], [0, 0, 1, 1]), "rows 1, 3"),
        (([[0.0], [1.0], [2.0]], [0, 1]), "3 embeddings but 2 labels"),
        ((np.zeros((0, 4)), []), "empty"),
        (([[0.0, 1.0]], [0]), "at least two"),
        (([0.0, 1.0], [0, 1]), r"expected \(N, d\)"),
        (([[0.0], [1.0]], [0, 1], "recal@1"), "Did you mean 'recall@1'"),
        (([[0.0], [1.0]], [0, 1], "recall@0"), "Unknown metric"),
        (([[0.0], [1.0]], [0, 1], []), "empty"),
        (([[0.0], [1.0]], None), "labels are missing"),
        (([[0.0], [1.0]], None, None, [[0.0]], [0]), "labels are missing"),
        (([[0.0], [1.0]], [0, 1], None, [[0.0]]), "without gallery_labels"),
        (([[0.0], [1.0]], [0, 1], None, None, [0]), "without a gallery"),
        (([[0.0], [1.0]], [0, 1], None, [[0.0, 1.0]], [0]), "give both from one model"),
        (([[0.0], [1.0]], [0, 1], None, [[0.0]], ["0"]), "one kind"),
        (([[0.0], [1.0]], [0, 1], None, [[0.0]], [0, 1]), "1 gallery rows but 2"),
    ],
)
def test_bad_input_is_explained(arguments: tuple, message: str) -> None:
    with pytest.raises(oodml.OodmlError, match=message):
        oodml.evaluate(*arguments)


def test_bad_options_are_explained() -> None:
    x, labels = clustered(40, 4)
    with pytest.raises(oodml.OodmlError, match=r"\(40, 40\)"):
        oodml.evaluate(x, labels, "recall@1", relevance=np.zeros((40, 4)))
    with pytest.raises(oodml.OodmlError, match="keep=0"):
        oodml.evaluate(x, labels, "recall@1", keep=0)
    with pytest.raises(oodml.OodmlError, match="superclass"):
        oodml.evaluate(x, labels, "recall@1", superclasses=["a"])
    with pytest.raises(oodml.OodmlError, match="No superclasses"):
        oodml.evaluate(x, labels, "recall@1").per_superclass()


def test_thresholds_are_among_the_metrics() -> None:
    x, labels = clustered(200, 10)
    scores = oodml.evaluate(x, labels, ["recall@1", "fnmr@fmr"])
    assert list(scores) == ["recall@1", *(f"fnmr@fmr=1e-{i}" for i in (1, 2, 3, 4))]
    assert oodml.evaluate(x, labels, ["fnmr@fmr=1e-2"]) == {"fnmr@fmr=1e-2": scores["fnmr@fmr=1e-2"]}
    assert isinstance(scores, Scores)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    x, labels = clustered(120, 6)
    np.savez(tmp_path / "set.npz", embeddings=x, labels=np.array([f"class {i}" for i in labels]))
    save_file({"embeddings": x, "labels": labels}, tmp_path / "set.safetensors")
    return tmp_path


def test_the_command_prints_a_table_and_json(saved: Path) -> None:
    x, labels = clustered(120, 6)
    runner = CliRunner()
    table = runner.invoke(app, ["evaluate", str(saved / "set.npz"), "--match", "3,5", "--interval"])
    assert table.exit_code == 0 and "recall@1:matched" in table.stdout and "nmi" in table.stdout
    assert f"{100 * oodml.evaluate(x, labels, 'map@r')['map@r']:.2f}" in table.stdout
    for name in ("set.npz", "set.safetensors"):
        done = runner.invoke(
            app,
            [
                "evaluate",
                str(saved / name),
                "--metrics",
                "map@r",
                "--k",
                "1,5",
                "--gallery",
                str(saved / name),
                "--json",
            ],
        )
        wanted = oodml.evaluate(x, labels, ["map@r"], x, labels, k=(1, 5))
        assert json.loads(done.stdout)["scores"] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.npz", "There is no file"),
        ("broken.npz", "could not be read"),
        ("other.txt", "neither"),
        ("empty.npz", "holds"),
    ],
)
def test_the_command_explains_files_it_cannot_use(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "broken.npz").write_bytes(b"PK not a zip")
    (tmp_path / "other.txt").write_text("text")
    np.savez(tmp_path / "empty.npz", values=np.zeros(3))
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / name)])
    assert isinstance(result.exception, oodml.OodmlError) and message in str(result.exception)


def test_every_example_of_the_guide_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert len(blocks) >= 4
    try:
        exec("\n".join(blocks), {})
    finally:
        METRICS._records.pop("mean-norm", None)
