"""A study with everything a report can show, written as files, without any training."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from oodml.data import load_dataset
from oodml.reporting import report
from oodml.study.table import Row, StudyTable, with_untrained

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
NASTY = "<img src=x onerror=alert(1)><b>bold"  # a slash cannot stand in a folder's name
LEVELS = {"margin": 0.62, "multisimilarity": 0.66, "triplet": 0.60, "R-margin": 0.63}


@dataclass(frozen=True)
class MadeStudy:
    folder: Path
    table: StudyTable


def write_images(root: Path, classes: list[str], images: int = 6) -> Path:
    """A folder of small images, a colour and a stripe for each class."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(images):
            pixels = np.full((40, 40, 3), (40 + 15 * number) % 255, dtype=np.uint8)
            pixels[:, (7 * number) % 36 : (7 * number) % 36 + 4] = (200, 40 * (number % 6), 90)
            pixels += rng.integers(0, 20, pixels.shape, dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def write_study(
    folder: Path,
    spec,
    levels: dict[str, float],
    n_splits: int,
    seeds: int,
    dim: int = 16,
    extras: bool = True,
) -> MadeStudy:
    """Write the folder of a study as runs would: results, curves, embeddings, and the optional files beside them."""
    dataset = load_dataset(spec)
    rng = np.random.default_rng(1)
    splits = []
    for i in range(n_splits):
        half = len(dataset.classes) // 2
        train, test = dataset.classes[:half], dataset.classes[half:]
        split = {"format": "oodml-split/1", "dataset": dataset.name, "name": f"shift-{i + 1}", "fid": 20.0 + 30 * i}
        splits.append({**split, "train": train, "test": test})
    rows = []
    for m, (method, level) in enumerate(levels.items()):
        for s, split in enumerate(splits):
            embeddings = _embeddings(dataset, split["test"], level - 0.03 * s, dim, rng)
            for seed in range(seeds):
                run = folder / "runs" / f"{m:02d}{s:02d}{seed:02d}cafe"
                row = _write_run(run, dataset, spec, method, split, s, seed, level, embeddings, rng, extras)
                rows.append(row)
                embeddings = run / "embeddings.safetensors"
    if extras:
        _write_extras(folder, splits, rows)
    rows = with_untrained(rows)
    if extras:
        rows += [
            Row("SwAV", p["name"], p["fid"], 0, {"recall@1": 0.5, "recall@1:matched": 0.48}, kind="external")
            for p in splits
        ]
    return MadeStudy(folder, StudyTable(rows))


def _embeddings(dataset, classes, level, dim, rng):
    """Test embeddings with failures: more dimensions tell classes apart more easily, so the noise grows with them."""
    indices = dataset.indices_of(classes)
    labels = dataset.labels[indices]
    centres = rng.normal(size=(len(dataset.classes), dim))
    points = centres[labels] + (1.6 - level) * np.sqrt(dim / 16) * rng.normal(size=(len(labels), dim))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return {"embeddings": points.astype(np.float16), "indices": indices, "labels": labels}


def _write_run(run, dataset, spec, method, split, s, seed, level, embeddings, rng, extras):
    run.mkdir(parents=True)
    if isinstance(embeddings, dict):
        save_file(embeddings, run / "embeddings.safetensors")
    else:
        os.link(embeddings, run / "embeddings.safetensors")  # what differs between seeds is not read
    best = 0.02 if method == "multisimilarity" else 0.0
    score = level - (0.03 - best / 3) * s + rng.normal(0, 0.004)
    scores = {"recall@1": score, "recall@1:matched": score + 0.05, "map@1000": score / 3, "nmi": 0.4 + score / 3}
    untrained = {"recall@1": 0.45 - 0.02 * s, "map@1000": 0.15 - 0.01 * s, "nmi": 0.5}
    shape = {"rho": 1.3 - score + rng.normal(0, 0.02), "pi_ratio": score + rng.normal(0, 0.03)}
    result = {
        "format": 1,
        "selection": "val",
        "selected": {"scores": scores},
        "seconds": 12.5,
        "untrained": untrained,
        "structure": {"train": shape, "test": {name: value + 0.1 for name, value in shape.items()}},
        "dataset": {"name": dataset.name, "fingerprint": dataset.fingerprint},
        "config": {
            "dataset": spec,
            "backbone": "tiny" if extras and method.startswith("R-") else "resnet50",
            "embedding_dim": 64,
            "steps": 100,
        },
        "device": "cpu",
        "processes": 1,
        "threads": 1,
        "versions": {"python": "3.11", "torch": "2.13"},
        "notes": [],
    }
    (run / "result.json").write_text(json.dumps(result))
    curve = [
        {"step": 10 * i, "loss": 2 / (i + 1), "val": {"recall@1": 0.3 + 0.03 * i}, "test": {"recall@1": 0.2 + 0.03 * i}}
        for i in range(1, 11)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in curve))
    if extras:
        zero, few = rng.normal(0.5, 0.01, 10).tolist(), rng.normal(0.55 + 0.01 * s, 0.01, 10).tolist()
        shots = {"zero": {"recall@1": [0.5, 0.01, zero]}, "few": {"recall@1": [0.55, 0.01, few]}}
        (run / "few_shot.json").write_text(json.dumps({"2": shots, "5": shots}))
    return Row(method, split["name"], split["fid"], seed, scores, untrained, 12.5, run)


def _write_extras(folder, splits, rows):
    steps = [{"step": i, "fid": 20.0 + 5 * i, "chosen": i % 6 == 0} for i in range(19)]
    (folder / "progression.json").write_text(json.dumps(steps))
    curve = [
        {"split": p["name"], "fid": p["fid"], "value": 0.7 - 0.03 * i, "low": 0.68 - 0.03 * i, "high": 0.72 - 0.03 * i}
        for i, p in enumerate(splits)
    ]
    target = {"name": "my <i>shelf</i>", "fid": 63.0, "value": 0.66, "low": 0.62, "high": 0.7, "inside": True}
    found = {
        "metric": "recall@1:matched",
        "curve": curve,
        "target": target,
        "leave_one_out_error": 0.012,
        "gallery": [6, 6],
    }
    (folder / "forecast.json").write_text(json.dumps(found))
    (folder / "splits.json").write_text(json.dumps({"format": "oodml-splits/1", "splits": splits}))
    (folder / "study.yaml").write_text("name: made\nmethods: [margin]\n")
    failed = folder / "runs" / "deadbeef"
    failed.mkdir()
    (failed / "failed.json").write_text(json.dumps({"traceback": "Traceback …\nRuntimeError: <u>out of memory</u>"}))


@pytest.fixture(scope="session")
def nasty():
    return NASTY


@pytest.fixture(scope="session")
def make_images():
    return write_images


@pytest.fixture(scope="session")
def make_study():
    return write_study


@pytest.fixture(scope="session")
def made_study(tmp_path_factory):
    """Four methods and a generic encoder, four splits, three seeds; one class with markup in its name."""
    root = tmp_path_factory.mktemp("made")
    names = [f"class {i:02d}" for i in range(10)] + [f"x{NASTY}", "zebra & co"]
    images = write_images(root / "images", names)
    levels = {**LEVELS, f"own {NASTY}": 0.58}
    return write_study(root / "study", {"name": "folder", "root": str(images)}, levels, 4, 3)


@pytest.fixture(scope="session")
def browser():
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium on this machine: the report is NOT tested in a browser")
    reason = "no playwright: the report is NOT tested in a browser"
    with pytest.importorskip("playwright.sync_api", reason=reason).sync_playwright() as play:
        started = play.chromium.launch(executable_path=path, args=OPTIONS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def page_file(made_study, tmp_path_factory):
    return report(made_study.table, tmp_path_factory.mktemp("browser") / "report.html")


@pytest.fixture(scope="session")
def open_page(browser, page_file):
    """Open a page, that of the made study by default; what the console says and what is asked of the network is kept
    beside it. A narrow one is a phone, which shows a chart's buttons without a pointer above it."""

    def open_at(width=1440, height=900, theme="light", file=page_file):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            accept_downloads=True,
            has_touch=width < 500,
        )
        page = context.new_page()
        page.problems, page.dialogs, page.requests = [], [], []
        page.on("console", lambda said: page.problems.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("dialog", lambda dialog: (page.dialogs.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda asked: page.requests.append(asked.url))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
        return page

    return open_at
