"""The papers' protocol on CUB-200-2011: margin, multisimilarity, R-margin, S2SD; ResNet50, d 128, one seed.

    python benchmarks/cub_h200.py --root cub200.tar --weights resnet50.pth --out RUNS [--epochs 80] [--methods rho]

Selection is the best test epoch, the papers' habit; all train classes are used. Expected on one H200, under two
minutes a run: recall@1 60.4 (margin), 60.4 (multisimilarity), 61.2 (R-margin), 65.0 (multisimilarity + MSDF) with
the original ResNet50's weights (untrained 41.4), seed noise about .7. Writes OUT/results.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import oodml

METHODS: dict[str, tuple[Any, str]] = {  # name -> (method, protocol)
    "margin": ("margin", "revisiting"),
    "multisimilarity": ("multisimilarity", "revisiting"),
    "rho": ("rho", "revisiting"),
    "s2sd": ({"name": "s2sd", "base": "multisimilarity"}, "s2sd"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="CUB-200-2011: folder or tar of class folders")
    parser.add_argument("--weights", help="weights of the original ResNet50; without them: --backbone's own")
    parser.add_argument("--backbone", default="resnet50_v1")
    parser.add_argument("--dataset", default="cub200")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--eval-every", type=int, default=2, help="epochs between evaluations on the test classes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    spec = {"name": options.dataset, "root": options.root}
    dataset = oodml.load_dataset(spec)
    rows = []
    for name in options.methods:
        method, protocol = METHODS[name]
        config = oodml.RunConfig(
            dataset=spec,
            protocol=protocol,
            method=method,
            backbone=options.backbone,
            weights=options.weights,
            embedding_dim=128,
            epochs=options.epochs,
            eval_every=options.eval_every,
            selection="test",
            seed=options.seed,
            out=str(options.out / name),
        )
        data = oodml.train(config, dataset).data
        kept = ("untrained", "gain", "seconds", "train_seconds", "images_per_second", "structure", "versions", "config")
        rows.append({"method": name, **data["selected"], **{key: data[key] for key in kept}})
        (options.out / "results.json").write_text(json.dumps(rows, indent=1))
    table = Table(title=f"{options.dataset}, {options.backbone}, d 128, {options.epochs} epochs", title_justify="left")
    for column in ("method", "recall@1", "untrained", "best epoch", "seconds", "images/s"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        scores = [f"{100 * row[key]['recall@1']:.1f}" for key in ("scores", "untrained")]
        table.add_row(
            row["method"], *scores, f"{row['epoch']:g}", f"{row['seconds']:.0f}", f"{row['images_per_second']:,.0f}"
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
