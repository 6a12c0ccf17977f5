"""Adaptation, transfer, capacity and generic representations on real photographs: the tables of
docs/results/adaptation.md, and the frozen-backbone reference of docs/results/.

    python benchmarks/adaptation_real.py few-shot DATASET ROOT --splits FILE [--ids 1 8] [--shots 2 5] [--lrs auto 1e-4]
    python benchmarks/adaptation_real.py transfer DATASET ROOT --splits FILE --target NAME ROOT [--ids 1]
    python benchmarks/adaptation_real.py capacity DATASET ROOT --splits FILE [--ids 1 8] [--backbones ...] [--dims ...]
    python benchmarks/adaptation_real.py generic DATASET ROOT --splits FILE [--backbones ...] [--forms ...]
    python benchmarks/adaptation_real.py head DATASET ROOT [--methods ...] [--steps 1500 4000]

FILE holds the official ooDML splits. `--train all` fine-tunes the backbone too, by the papers' protocol except that the
epoch is chosen on validation classes (it wants a GPU). `--weights FOLDER` has NAME.pth for backbones that are not
installed. `--json FILE` keeps every number, written after each part. Started again, finished runs are read.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import oodml
from oodml._files import write_json
from oodml.adaptation import FewShot
from oodml.adaptation.cross_dataset import transfer, transfer_json
from oodml.cli._app import print_table
from oodml.shift import load_official
from oodml.training import Result

METRICS = ("recall@1", "map@1000")
ADAPTED = ("rate × steps", "zero-shot", "few-shot", "gain")
METHODS = ("multisimilarity", "margin", "proxyanchor", "s2sd")
SKETCH = {  # frozen Lite0, d 512, 8 views, after so many steps: recall@1 of a plain sketch, %
    ("cub200", 1500): (56.1, 56.3, 56.7, 56.8),
    ("cars196", 1500): (54.6, 54.3, 52.7, 53.9),
    ("cars196", 4000): (55.7, 55.4, None, 55.6),
}


def main() -> None:
    options = parse()
    if options.weights:
        os.environ["OODML_WEIGHTS"] = str(options.weights)
    warnings.simplefilter("ignore")  # the copies lack a few pictures, which loading says every time
    options.data = oodml.load_dataset(options.dataset, root=options.root)
    wanted = load_official(options.splits, options.dataset) if options.splits else []
    options.chosen = [s for s in wanted if options.ids is None or s.name.removeprefix("official-") in options.ids]
    if options.what != "head" and not options.chosen:
        raise SystemExit("--splits FILE is needed, and --ids that are in it")
    make, show = PARTS[options.what]
    began, records = time.perf_counter(), []
    for record in make(options):
        records.append(record)
        if options.json:
            write_json(options.json, {"options": told(options), "records": records})
    show(options, records)
    print(f"{time.perf_counter() - began:.0f} s")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=PARTS)
    parser.add_argument("dataset")
    parser.add_argument("root")
    parser.add_argument("--splits")
    parser.add_argument("--ids", nargs="+", help="official numbers; default: all")
    parser.add_argument("--target", nargs=2, metavar=("NAME", "ROOT"), help="transfer: the data set to be tried on")
    parser.add_argument("--backbones", nargs="+", default=["tf_efficientnet_lite0"])
    parser.add_argument("--weights", type=Path, help="folder of NAME.pth; sets $OODML_WEIGHTS")
    parser.add_argument("--dims", nargs="+", type=int, default=[512])
    parser.add_argument("--methods", nargs="+", help="default: margin; head: those of the reference")
    parser.add_argument("--train", default="head", choices=["head", "all"])
    parser.add_argument("--epochs", type=int, default=60, help="with --train all")
    parser.add_argument("--eval-every", type=int, default=3, help="with --train all: epochs between selections")
    parser.add_argument("--steps", nargs="+", type=int, default=[1500], help="with --train head")
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--shots", nargs="+", type=int, default=[2, 5])
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--lrs", nargs="+", default=["auto", "1e-4"], help="of the adaptation, one after the other")
    parser.add_argument("--adapt-steps", type=int, help="of the adaptation; default: the papers'")
    parser.add_argument("--exact", action="store_true", help="adapt to fresh augmentations: far slower")
    parser.add_argument("--forms", nargs="+", default=["normalised", "raw", "whitened"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def told(options: argparse.Namespace) -> dict[str, Any]:
    left_out = ("data", "chosen", "root", "target", "splits", "weights", "out", "json")
    kept = {key: value for key, value in vars(options).items() if key not in left_out}
    return {**kept, "splits": [split.name for split in options.chosen]}


def trained(options: argparse.Namespace, split: Any, backbone: str, dim: int, method: str, **more: Any) -> Result:
    """A run of the benchmark: found in `out`, or trained. By default its epoch is chosen on validation classes."""
    if options.train == "all":
        depth = {"protocol": "oodml", "selection": "val", "epochs": options.epochs, "eval_every": options.eval_every}
    else:
        depth = {"steps": options.steps[0]}
    settings = {"train": options.train, "views": options.views, **depth, **more}
    named = ("train", "steps", "epochs", "views", "selection")
    tail = "-".join(str(settings[key]) for key in named if key in settings)
    name = f"{options.dataset}-{getattr(split, 'name', split)}-{method}-{backbone}-{dim}-{tail}-{options.seed}"
    config = oodml.RunConfig(
        dataset={"name": options.dataset, "root": options.root},
        split=split,
        backbone=backbone,
        method=method,
        embedding_dim=dim,
        metrics=METRICS,
        seed=options.seed,
        device=options.device,
        out=str(options.out / name),
        **settings,
    )
    return oodml.train(config, options.data)


def about_run(run: Result) -> dict[str, Any]:
    """What a run has to say, as plain data."""
    kept = ("selected", "last", "untrained", "seconds", "train_seconds", "images_per_second", "config_hash", "device")
    return {"run": run.path.name, **{key: run.data[key] for key in kept}}


def rates(options: argparse.Namespace) -> list[Any]:
    return [rate if rate == "auto" else float(rate) for rate in options.lrs]


def adapting(options: argparse.Namespace) -> dict[str, Any]:
    return {"steps": options.adapt_steps, "exact": options.exact, "seed": options.seed, "device": options.device}


def make_few_shot(options: argparse.Namespace) -> Iterable[dict[str, Any]]:
    for split in options.chosen:
        for method in options.methods or ["margin"]:
            for dim in options.dims:
                run = trained(options, split, options.backbones[0], dim, method)
                facts = {"split": split.name, "method": method, "d": dim, **about_run(run)}
                for shots in options.shots:
                    for lr in rates(options):
                        found = oodml.few_shot(run.path, split, shots, options.episodes, lr=lr, **adapting(options))
                        yield {**facts, "shots": shots, "lr": lr, **found.to_json()}


def show_few_shot(options: argparse.Namespace, records: list[dict[str, Any]]) -> None:
    rows = []
    for each in records:
        named = [each["split"].removeprefix("official-"), each["method"], each["d"], each["shots"], each["lr"]]
        for metric in METRICS:
            untrained, seconds = f"{100 * each['untrained'][metric]:.2f}", f"{each['about']['seconds']:.0f}"
            rows.append([*named, metric, untrained, *adapted(each, metric), seconds])
    columns = ["split", "method", "d", "shots", "lr", "metric", "untrained", *ADAPTED, "seconds"]
    print_table(f"{options.dataset}, {options.episodes} episodes", columns, rows)


def adapted(record: dict[str, Any], metric: str) -> list[str]:
    """Rate × steps; before, after, and what was gained, %."""
    found = FewShot.from_json(record)
    cells = [found["zero"][metric], found["few"][metric], found.gain(metric)]
    steps = f"{found.about['lr']:g} × {found.about['steps']}"
    return [steps, *(f"{100 * cell.mean:.2f} ± {100 * cell.half_width:.2f}" for cell in cells)]


def make_transfers(options: argparse.Namespace) -> Iterable[dict[str, Any]]:
    name, root = options.target
    spec = {"name": name, "root": root}
    for split in options.chosen:
        run = trained(options, split, options.backbones[0], options.dims[0], (options.methods or ["margin"])[0])
        for lr in rates(options):
            shots, more = options.shots, {"lr": lr, **adapting(options)}
            found = transfer(run.path, spec, shots=shots, episodes=options.episodes, metrics=METRICS, **more)
            yield {"from": f"{options.dataset} {split.name}", "to": name, "lr": lr, **transfer_json(found)}


def show_transfers(options: argparse.Namespace, records: list[dict[str, Any]]) -> None:
    rows = [
        [each["from"], each["to"], f"{each['fid']:.1f}", metric, each["lr"], shots]
        + [f"{100 * each[side][metric]:.2f}" for side in ("untrained", "scores")]
        + adapted(found, metric)
        for each in records
        for shots, found in each["few"].items()
        for metric in METRICS
    ]
    columns = ["trained on", "tried on", "FID", "metric", "lr", "shots", "untrained", "all test images"]
    print_table("cross-data-set transfer", [*columns, *ADAPTED], rows)


def make_capacity(options: argparse.Namespace) -> Iterable[dict[str, Any]]:
    for backbone in options.backbones:
        for dim in options.dims:
            for split in options.chosen:
                run = trained(options, split, backbone, dim, (options.methods or ["margin"])[0])
                yield {"backbone": backbone, "d": dim, "split": split.name, **about_run(run)}


def make_head(options: argparse.Namespace) -> Iterable[dict[str, Any]]:
    for steps in options.steps:
        sketch = dict(zip(METHODS, SKETCH.get((options.dataset, steps), ()), strict=False))
        for method in options.methods or METHODS:
            how = {"train": "head", "selection": "last", "steps": steps, "eval_every": steps, "crop_scale": (0.35, 1.0)}
            run = trained(options, "default", options.backbones[0], options.dims[0], method, **how)
            facts = {"method": method, "steps": steps, "d": options.dims[0], "sketch": sketch.get(method)}
            yield {**facts, **about_run(run)}


def show_runs(options: argparse.Namespace, records: list[dict[str, Any]]) -> None:
    named = [key for key in ("backbone", "method", "d", "split", "steps", "sketch") if key in records[0]]
    rows = []
    for each in records:
        scores = [value for m in METRICS for value in (each["untrained"][m], each["selected"]["scores"][m])]
        rows.append([*(each[key] for key in named), *(f"{100 * s:.1f}" for s in scores), f"{each['seconds']:.0f}"])
    print_table(
        f"{options.dataset}, %: {METRICS[0]} and {METRICS[1]}, untrained and trained",
        [*named, "untrained", METRICS[0], "untrained", METRICS[1], "seconds"],
        rows,
    )


def make_generic(options: argparse.Namespace) -> Iterable[dict[str, Any]]:
    for backbone in options.backbones:
        for row in oodml.evaluate_pretrained(
            options.data, options.chosen, [backbone], forms=options.forms, metrics=METRICS, device=options.device
        ):
            yield asdict(row)


def show_generic(options: argparse.Namespace, records: list[dict[str, Any]]) -> None:
    for metric in METRICS:
        cells: dict[tuple[str, str], list[str]] = {}
        for row in records:
            cells.setdefault((row["backbone"], row["form"]), []).append(f"{100 * row['scores'][metric]:.1f}")
        columns = ["encoder", "form", *(s.name.removeprefix("official-") for s in options.chosen)]
        print_table(f"{options.dataset}, {metric}, %", columns, [[*key, *values] for key, values in cells.items()])


PARTS = {
    "few-shot": (make_few_shot, show_few_shot),
    "transfer": (make_transfers, show_transfers),
    "capacity": (make_capacity, show_runs),
    "generic": (make_generic, show_generic),
    "head": (make_head, show_runs),
}

if __name__ == "__main__":
    main()
