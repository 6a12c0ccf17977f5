"""What an audit runs: a fixed grid for each budget, in blocks. A block is all methods × all levels of shift × one draw.

A draw is a seed: the splits are computed from the images without chance, so that the draws of an audit differ in the
initial head and in the order of the batches. A larger budget contains the runs of a smaller one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oodml._errors import unknown_name
from oodml.data import Dataset
from oodml.shift import Split
from oodml.study import StudyConfig
from oodml.study.grid import PlannedRun
from oodml.study.store import Store

# S2SD is last: its wide branches cost five times as much per step as the others.
METHODS: dict[str, str | dict[str, Any]] = {
    "multisimilarity": "multisimilarity",
    "margin": "margin",
    "proxyanchor": "proxyanchor",
    "R-margin": {"name": "rho", "base": "margin"},
    "S2SD": {"name": "s2sd", "base": "multisimilarity", "targets": [1024]},
}
STEPS, VIEWS, BATCH = 500, 4, 112
MOST_LEVELS = 9


@dataclass(frozen=True)
class Budget:
    """The size of an audit: the first `methods` of METHODS, levels of shift, draws, the most images it uses, and
    further encoders to score as they are."""

    name: str
    methods: int
    levels: int
    draws: int
    images: int
    encoders: tuple[str, ...] = ()

    @property
    def settings_of_methods(self) -> dict[str, str | dict[str, Any]]:
        return dict(list(METHODS.items())[: self.methods])


BUDGETS = {
    budget.name: budget
    for budget in (
        Budget("small", 3, 3, 3, 2_000),
        Budget("medium", 4, 5, 4, 6_000, ("tf_efficientnet_lite1",)),
        Budget("large", 5, MOST_LEVELS, 5, 20_000, ("tf_efficientnet_lite1", "tf_efficientnet_lite2")),
    )
}


def budget_named(name: str) -> Budget:
    if name not in BUDGETS:
        raise unknown_name("budget", name, BUDGETS)
    return BUDGETS[name]


def audit_study(
    budget: Budget, settings: dict[str, Any], dataset: Dataset, backbone: str, splits: Sequence[Split], file: Path
) -> StudyConfig:
    """The study of an audit: heads on the features of a frozen backbone. `settings` are those of the dataset."""
    fewest = min(len(dataset.indices_of(split.train)) for split in splits)
    run = {
        "backbone": backbone,
        "train": "head",
        "embedding_dim": 512,
        "steps": STEPS,
        "eval_every": STEPS,
        "batch_size": min(BATCH, max(4, fewest // 2 * 2)),
        "views": VIEWS,
        "selection": "last",  # few classes: none can be spared for validation
    }
    return StudyConfig(
        name="audit",
        dataset=settings,
        splits=str(file),
        methods=budget.settings_of_methods,
        seeds=list(range(budget.draws)),
        run=run,
    )


def blocks_of(planned: Sequence[PlannedRun]) -> list[list[PlannedRun]]:
    """The runs by draw."""
    return [[run for run in planned if run.seed == seed] for seed in sorted({run.seed for run in planned})]


def run_blocks(
    planned: Sequence[PlannedRun],
    store: Store,
    train: Callable[[list[PlannedRun]], None],
    minutes: float | None,
    began: float,
    workers: int,
) -> None:
    """Train the missing runs, block by block, while the next block is expected to end within `minutes` after `began`.

    A block is expected to take as long per run as the last one did; the first of a session, as long as the finished
    runs of earlier sessions report. Where no run has finished yet, the first block is run in any case.
    """
    missing = [[run for run in block if store.result(run.id) is None] for block in blocks_of(planned)]
    if minutes is None:
        train([run for block in missing for run in block])
        return
    results = [result for run in planned if (result := store.result(run.id)) is not None]
    per_run = sum(result["seconds"] for result in results) / len(results) / workers if results else None
    for block in filter(None, missing):
        start = time.monotonic()
        if per_run is not None and start - began + per_run * len(block) > 60 * minutes:
            return
        train(block)
        per_run = (time.monotonic() - start) / len(block)


def complete_blocks(planned: Sequence[PlannedRun], store: Store) -> tuple[list[PlannedRun], list[str]]:
    """The runs of the complete blocks, and notes on what is missing. A method that fails is left out of all blocks."""
    blocks = blocks_of(planned)
    undone = {run.id for run in planned if store.result(run.id) is None}
    never = {run.method for run in planned}
    for block in blocks:
        never &= {run.method for run in block if run.id in undone}
    reasons = {run.method: reason for run in planned if run.id in undone and (reason := store.failure(run.id))}
    failed = {method: reasons[method].strip().splitlines()[-1] for method in reasons if method in never}
    notes = [f"{method} failed and is left out: {reason}" for method, reason in failed.items()]
    kept = [[run for run in block if run.method not in failed] for block in blocks]
    complete = [block for block in kept if block and not any(run.id in undone for run in block)]
    if len(complete) < len(blocks) and len(failed) < len({run.method for run in planned}):
        notes.append(
            f"{len(complete)} of {len(blocks)} blocks are complete, and the answer uses only these. "
            "Run the same command again to add the others."
        )
        notes += [
            f"{m} failed in one block: {r.strip().splitlines()[-1]}" for m, r in reasons.items() if m not in failed
        ]
    return [run for block in complete for run in block], notes
