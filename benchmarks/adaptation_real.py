"""Few-shot adaptation and generic representations on real photographs; makes the tables of docs/results/adaptation.md.

    python benchmarks/adaptation_real.py few-shot DATASET ROOT --splits FILE [--ids 1 8] [--shots 2 5] [--train head]
    python benchmarks/adaptation_real.py generic DATASET ROOT --splits FILE [--backbones ...] [--forms ...]
    python benchmarks/adaptation_real.py capacity DATASET ROOT --splits FILE [--ids 1 8] [--backbones ...] [--dims ...]

FILE holds the official ooDML splits. `--train all` fine-tunes the backbone too, which wants a GPU. Started again,
finished runs are read.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import oodml
from oodml.cli._app import print_table
from oodml.shift import load_official

METRICS = ("recall@1", "map@1000")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["few-shot", "generic", "capacity"])
    parser.add_argument("dataset")
    parser.add_argument("root")
    parser.add_argument("--splits", required=True)
    parser.add_argument("--ids", nargs="+", help="official numbers; default: all")
    parser.add_argument("--backbones", nargs="+", default=["tf_efficientnet_lite0"])
    parser.add_argument("--dims", nargs="+", type=int, default=[512])
    parser.add_argument("--method", default="margin")
    parser.add_argument("--train", default="head", choices=["head", "all"])
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--shots", nargs="+", type=int, default=[2, 5])
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-4, help="of the adaptation")
    parser.add_argument("--forms", nargs="+", default=["normalised", "raw", "whitened"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the copies lack a few pictures, which loading says every time
    options.data = oodml.load_dataset(options.dataset, root=options.root)
    wanted = load_official(options.splits, options.dataset)
    options.chosen = [s for s in wanted if options.ids is None or s.name.removeprefix("official-") in options.ids]
    {"few-shot": few_shot, "generic": generic, "capacity": capacity}[options.what](options)


def trained(options: argparse.Namespace, split: oodml.Split, backbone: str, dim: int) -> Any:
    name = f"{options.dataset}-{split.name}-{options.method}-{backbone}-{dim}-{options.train}-{options.views}"
    config = oodml.RunConfig(
        dataset={"name": options.dataset, "root": options.root},
        split=split,
        backbone=backbone,
        method=options.method,
        embedding_dim=dim,
        train=options.train,
        views=options.views,
        metrics=METRICS,
        seed=options.seed,
        device=options.device,
        out=str(options.out / name),
    )
    return oodml.train(config)


def few_shot(options: argparse.Namespace) -> None:
    rows = []
    for split in options.chosen:
        run = trained(options, split, options.backbones[0], options.dims[0])
        for shots in options.shots:
            found = oodml.few_shot(
                run.path, split, shots, options.episodes, lr=options.lr, seed=options.seed, device=options.device
            )
            for metric in METRICS:
                cells = [found["zero"][metric], found["few"][metric], found.gain(metric)]
                shown = [f"{100 * cell.mean:.2f} ± {100 * cell.half_width:.2f}" for cell in cells]
                rows.append(
                    [split.name.removeprefix("official-"), metric, shots, f"{100 * run.untrained[metric]:.2f}", *shown]
                )
                rows[-1].append(f"{found.about['seconds']:.0f}")
    columns = ["split", "metric", "shots", "untrained", "zero-shot", "few-shot", "gain", "seconds"]
    print_table(f"{options.dataset}, {options.episodes} episodes", columns, rows)


def generic(options: argparse.Namespace) -> None:
    rows = oodml.evaluate_pretrained(
        options.data, options.chosen, options.backbones, forms=options.forms, metrics=METRICS, device=options.device
    )
    for metric in METRICS:
        cells = []
        for label, form in dict.fromkeys((row.backbone, row.form) for row in rows):
            values = [row.scores[metric] for row in rows if (row.backbone, row.form) == (label, form)]
            cells.append([label, form, *(f"{100 * value:.1f}" for value in values)])
        print_table(
            f"{options.dataset}, {metric}, %",
            ["encoder", "form", *(s.name.removeprefix("official-") for s in options.chosen)],
            cells,
        )


def capacity(options: argparse.Namespace) -> None:
    rows = []
    for backbone in options.backbones:
        for dim in options.dims:
            for split in options.chosen:
                run = trained(options, split, backbone, dim)
                scores = [f"{100 * side['recall@1']:.1f}" for side in (run.untrained, run.scores)]
                rows.append([backbone, dim, split.name, *scores, f"{100 * run.gain['recall@1']:+.1f}"])
    print_table(f"{options.dataset}, recall@1, %", ["backbone", "d", "split", "untrained", "trained", "gain"], rows)


if __name__ == "__main__":
    main()
