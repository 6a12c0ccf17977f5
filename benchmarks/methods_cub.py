"""Sharing Matters, DiVA, uniform prior and mixup against plain margin at the same embedding size.

    python benchmarks/methods_cub.py --root cub200.tar --weights resnet50.pth --out RUNS          # CUB, ResNet50
    python benchmarks/methods_cub.py --dataset glyphs --out RUNS                                  # a CPU, minutes

CUB: the papers' protocols (batch 112, Adam 1e-5, weight decay 4e-4, best test epoch), 60 epochs, one seed; sizes are
the papers': sharing 256 = 2 × 128, DiVA 512 = 4 × 128. A step of sharing takes two batches, and an epoch shows every
image to both tasks, so the features get twice the updates: its base, margin in its protocol, has twice the epochs.
Glyphs: `tiny`, 200 steps (sharing 100, the same number of images), 128 dimensions, last epoch. Writes
OUT/results.json: recall@1, gain over the untrained features and over plain margin of the same size, ρ of the train
embeddings, images a second, recall of each space.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import oodml

# name -> (method, protocol, embedding size on photographs, epochs as a multiple)
RUNS: dict[str, tuple[Any, str, int, float]] = {
    "margin-128": ("margin", "revisiting", 128, 1),
    "margin-256": ("margin", "revisiting", 256, 1),
    "margin-512": ("margin", "revisiting", 512, 1),
    "margin-256, sharing's protocol": ("margin", "sharing", 256, 2),  # its batches, augmentation and updates
    "rho": ("rho", "revisiting", 128, 1),
    "sharing": ("sharing", "sharing", 256, 1),
    "diva": ("diva", "revisiting", 512, 1),
    "diva-as-coded": ("diva", "oodml", 512, 1),
    "uniform_prior": ("uniform_prior", "revisiting", 512, 1),
    "mixup": ("mixup", "revisiting", 128, 1),
}
ON_GLYPHS: dict[str, tuple[Any, int]] = {
    "margin": ("margin", 200),
    "rho": ("rho", 200),
    "uniform_prior": ("uniform_prior", 200),
    "uniform_prior around rho": ({"name": "uniform_prior", "base": "rho"}, 200),
    "mixup": ("mixup", 200),
    "diva": ("diva", 200),
    "diva, weights as coded": ({"name": "diva", "weighting": "batch"}, 200),
    "sharing": ("sharing", 100),
    "sharing, both": ({"name": "sharing", "variant": "both"}, 100),
    "sharing, both+sep": ({"name": "sharing", "variant": "both+sep"}, 100),
    "sharing, shared only": ({"name": "sharing", "variant": "shared"}, 200),
    "sharing, groups": ({"name": "sharing", "triplets": "groups"}, 100),
    "sharing, min-dap": ({"name": "sharing", "triplets": "min-dap"}, 100),
    "sharing, no-constraint": ({"name": "sharing", "triplets": "no-constraint"}, 100),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cub200")
    parser.add_argument("--root", help="the data set's folder or tar of class folders")
    parser.add_argument("--weights", help="weights of the original ResNet50; without them: --backbone's own")
    parser.add_argument("--backbone", default="resnet50_v1")
    parser.add_argument("--runs", nargs="+", help="names; default: all")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--steps", type=int, help="a shorter trial: steps instead of epochs")
    parser.add_argument("--eval-every", type=int, default=2, help="epochs between evaluations on the test classes")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    known = ON_GLYPHS if options.dataset == "glyphs" else RUNS
    chosen = options.runs or list(known)
    if unknown := set(chosen) - known.keys():
        parser.error(f"unknown runs {sorted(unknown)}; known: {', '.join(known)}")
    spec: Any = {"name": options.dataset, "root": options.root} if options.root else options.dataset
    dataset = oodml.load_dataset(spec)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in chosen:
        for seed in range(options.seeds):
            settings = glyphs_settings(name, options) if options.dataset == "glyphs" else settings_of(name, options)
            out = str(options.out / f"{re.sub('[^a-z0-9_]+', '-', name)}-{seed}")
            common = {"dataset": spec, "seed": seed, "device": options.device, "quiet": True, "out": out}
            rows.append(row_of(name, oodml.train(oodml.RunConfig(**common, **settings), dataset)))
            add_gain_over_margin(rows)
            (options.out / "results.json").write_text(json.dumps(rows, indent=1))
    show(rows)


def settings_of(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A run on photographs: the protocol's settings, with the length given here."""
    method, protocol, dim, times = RUNS[name]
    length = {"steps": options.steps} if options.steps else {"epochs": round(options.epochs * times)}
    settings = {"protocol": protocol, "method": method, "embedding_dim": dim, "backbone": options.backbone, **length}
    settings |= {"weights": options.weights, "selection": "test"}
    settings |= {} if options.steps else {"eval_every": options.eval_every}
    return settings | ({"batch_size": options.batch_size} if options.batch_size else {})


def glyphs_settings(name: str, options: argparse.Namespace) -> dict[str, Any]:
    method, steps = ON_GLYPHS[name]
    steps = options.steps or steps
    return {"method": method, "embedding_dim": 128, "steps": steps, "eval_every": steps, "selection": "last"}


def row_of(name: str, result: oodml.Result) -> dict[str, Any]:
    data = result.data
    kept = ("seed", "seconds", "train_seconds", "images_per_second", "steps", "versions", "config")
    last = result.history[-1]
    return {
        "run": name,
        "embedding_dim": data["config"]["embedding_dim"],
        "scores": data["selected"]["scores"],
        "epoch": data["selected"]["epoch"],
        "untrained": data["untrained"]["recall@1"],
        "gain": data["gain"]["recall@1"],
        "rho": data["structure"]["train"]["rho"],
        "watched": {space: score["recall@1"] for space, score in last.get("watched", {}).items()},
        "facts": last.get("facts", {}),
        **{key: data[key] for key in kept},
    }


def add_gain_over_margin(rows: list[dict[str, Any]]) -> None:
    """Beside each run: how far it is above plain margin of the same size and seed, where that was run."""
    plain = {key_of(row): row for row in rows if row["run"].startswith("margin")}
    for row in rows:
        base = plain.get(key_of(row))
        row["over_margin"] = row["scores"]["recall@1"] - base["scores"]["recall@1"] if base else None
        row["speed_of_margin"] = row["images_per_second"] / base["images_per_second"] if base else None


def key_of(row: dict[str, Any]) -> tuple[int, int, int]:
    """What a run and its base share: size, seed and samples a class (the protocol of sharing has four)."""
    return row["embedding_dim"], row["seed"], row["config"]["samples_per_class"]


def show(rows: list[dict[str, Any]]) -> None:
    columns = ("run", "d", "seed", "recall@1", "over margin", "rho", "images/s", "of margin's", "spaces")
    table = Table(title="Methods against plain margin of the same size", title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in ("run", "spaces") else "right")
    for row in rows:
        over, speed = row["over_margin"], row["speed_of_margin"]
        table.add_row(
            *(row["run"], str(row["embedding_dim"]), str(row["seed"]), f"{100 * row['scores']['recall@1']:.1f}"),
            *("" if over is None else f"{100 * over:+.1f}", f"{row['rho']:.2f}", f"{row['images_per_second']:,.0f}"),
            *(
                "" if speed is None else f"{100 * speed:.0f} %",
                " ".join(f"{100 * v:.1f}" for v in row["watched"].values()),
            ),
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
