"""`oodml.train`: from settings to a finished run directory."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from oodml._errors import OodmlError
from oodml._files import atomic_file, write_json
from oodml.config import RunConfig
from oodml.config.identity import IDENTITY, starting_weights
from oodml.data import Dataset, load_dataset
from oodml.evaluation import check_metrics
from oodml.models.features import SMALLEST_INPUT
from oodml.training import distributed
from oodml.training.console import console
from oodml.training.distributed import Processes
from oodml.training.folder import check_folder
from oodml.training.initial import starting_backbone
from oodml.training.job import Job, build_job, load_pictures
from oodml.training.judge import LAST, TEST_EMBEDDINGS
from oodml.training.loggers import check_installed, open_loggers
from oodml.training.loop import fit
from oodml.training.progress import BEST_ON_TEST, SELECTED, Keeper, Progress
from oodml.training.result import FORMAT, Result, final_scores, gain, git_commit, load_result, names_key, versions
from oodml.training.saving import Saver, resume
from oodml.training.scoring import embed, score, shape, untrained_reader
from oodml.training.signals import stop_requests


def train(config: RunConfig | Mapping[str, Any], dataset: Dataset | None = None) -> Result:
    """Train an embedder and measure it on classes it has not seen.

    Started again with the same settings and `out`, an unfinished run goes on and a finished one is read. `dataset`
    spares loading again a data set that the caller has at hand.
    """
    config = config if isinstance(config, RunConfig) else RunConfig(**config)
    settings = config.resolved()
    check_metrics((*(settings.metrics or ()), settings.selection_metric))
    run_hash = config.hash()
    out = Path(settings.out or f"runs/{settings.dataset_name}-{settings.method['name']}-{run_hash[:8]}")  # type: ignore[index]
    check_folder(out, config)
    if (out / "result.json").exists():
        return _finished(out, settings, dataset)
    processes = distributed.join(settings.device)
    dataset = dataset if dataset is not None else load_dataset(settings.dataset)
    search = None
    if settings.selection == "val-then-full":
        search = train(settings.model_copy(update={"selection": "val", "out": str(out / "search")}), dataset)
    _run(settings, run_hash, out, dataset, processes, search)
    return load_result(out)


def _finished(out: Path, settings: RunConfig, dataset: Dataset | None) -> Result:
    """The result that is there, with a warning where it is one of other pictures."""
    found = load_result(out)
    try:
        dataset = dataset if dataset is not None else load_dataset(settings.dataset)
    except OodmlError:  # a result can be read where the pictures are not
        return found
    if found.data["dataset"].get("loaded", dataset.fingerprint) != dataset.fingerprint:
        warnings.warn(
            f"The pictures of {dataset.name!r} have changed since the run {out} was trained; this is its old result. "
            "Remove the folder, or choose another `out`, to train again.",
            stacklevel=3,
        )
    return found


def _run(
    settings: RunConfig, run_hash: str, out: Path, dataset: Dataset, processes: Processes, search: Result | None
) -> None:
    """One pass of the loop, and its result written; after a `search`, on all train classes and as long as it says."""
    began = time.perf_counter()
    config, stop_at = settings, None
    facts: dict[str, Any] = {"selection": settings.selection, "config": settings.on_its_own()}
    if search is not None:
        chosen = search.data["selected"]
        config = settings.model_copy(update={"selection": "last"})
        stop_at = chosen["step"] if settings.steps else chosen["epoch"]
        facts["search"] = {key: chosen[key] for key in ("step", "epoch", "val")}
    backbone = starting_backbone(config)  # before the pictures, which may take minutes to decode
    logged_to = config.logger if processes.is_main else None
    check_installed(logged_to)
    job = build_job(config, out, load_pictures(config, dataset, processes), backbone, processes, stop_at)
    progress = resume(job, run_hash)
    keeper = Keeper(out / "kept", progress)
    if not progress.untrained:
        rows = embed(job.embedder, untrained_reader, job.source, job.sets.test, processes, job.eval_batch)
        progress.untrained = score(rows, job.dataset.labels[job.sets.test], config.metrics, processes)
    clock = began - progress.seconds
    with (
        stop_requests() as stop,
        open_loggers(logged_to, out, config.as_dict()) as loggers,
        console(job, loggers, progress.step) as shown,
    ):
        saver = Saver(job, settings, run_hash, progress.step, clock)
        try:
            fit(job, progress, keeper, saver, shown, stop)
        finally:
            saver.finish()  # also when the loop fails: what was saved must be on disk before anyone reads it
    facts["dataset"] = {
        "name": job.dataset.name,
        "fingerprint": job.dataset.fingerprint,
        "loaded": dataset.fingerprint,
        "names": names_key(job.dataset),
    }
    seconds = time.perf_counter() - clock + (search.data["seconds"] if search else 0.0)
    _finish(job, progress, keeper, run_hash, {**facts, "seconds": round(seconds, 2)})


def _finish(job: Job, progress: Progress, keeper: Keeper, run_hash: str, facts: dict[str, Any]) -> None:
    """Score what was kept with every metric, and write the embedder, the test embeddings and result.json."""
    processes, labels, metrics = job.processes, job.dataset.labels, job.config.metrics
    rows = {row["step"]: row for row in progress.history}
    report: dict[str, Any] = {}
    scored: dict[int, dict[str, float]] = {}
    kept = {name: keeper.tensors(name) if processes.is_main else {} for name in (SELECTED, LAST, BEST_ON_TEST)}
    for name, tensors in kept.items():
        best = progress.kept[name]
        if job.config.selection == "test":  # every evaluation scored every metric
            scored[best.step] = rows[best.step]["test"]
        elif best.step not in scored:
            embeddings = tensors.get(TEST_EMBEDDINGS, torch.empty(0)).to(processes.device)
            scored[best.step] = score(embeddings, labels[job.sets.test], metrics, processes)
        report[name] = {"step": best.step, "epoch": round(best.epoch, 4), "scores": scored[best.step]}
        report[name] |= {"val": rows[best.step]["val"]} if "val" in rows[best.step] else {}
    if job.config.selection == "test":
        report["maxima"] = progress.maxima()
    weights = {key: value for key, value in kept[SELECTED].items() if key != TEST_EMBEDDINGS}
    if processes.is_main:
        job.embedder.load_state_dict(weights, strict=False)
    distributed.synchronise(job.embedder)
    shapes = {}
    for side, indices in {"train": job.sets.fit, "test": job.sets.test}.items():
        found = embed(job.embedder, job.method.test_embedding, job.source, indices, processes, job.eval_batch)
        shapes[side] = shape(found, labels[indices], processes)
    if processes.is_main:
        _write_tensors(job, kept[SELECTED], weights)
        data = {
            "format": FORMAT,
            **report,
            "untrained": progress.untrained,
            "gain": gain(final_scores(report), progress.untrained),
            "structure": shapes,
            "evaluations": len(progress.history),
            "train_seconds": round(progress.train_seconds, 3),
            "images_per_second": round(float(np.median(progress.rates)), 1),
            **facts,
            **_facts(job, run_hash),
        }
        write_json(job.out / "result.json", data)
    processes.barrier()


def _write_tensors(job: Job, kept: dict[str, torch.Tensor], weights: dict[str, torch.Tensor]) -> None:
    test = job.sets.test
    context = job.method.context
    about = {
        "num_classes": context.num_classes,
        "embedding_dim": context.embedding_dim,
        "feature_dim": context.feature_dim,
        "total_steps": context.total_steps,
    }
    seen, cut = job.dataset.transforms, job.dataset.image_size
    transforms = {"size": cut, "short_side": seen.short_side}
    transforms["input"] = max(cut, SMALLEST_INPUT) if job.config.train == "head" else cut
    weights_id = job.embedder.backbone.weights_id if job.config.train == "head" else ""
    facts = {"context": about, "transforms": transforms, "weights_id": weights_id}
    with atomic_file(job.out / "embedder.safetensors") as temporary:
        save_file(
            {name: tensor.contiguous() for name, tensor in weights.items()},
            temporary,
            metadata={key: json.dumps(value) for key, value in facts.items()},
        )
    with atomic_file(job.out / "embeddings.safetensors") as temporary:
        tensors = {
            "embeddings": kept[TEST_EMBEDDINGS].half(),
            "indices": torch.from_numpy(test),
            "labels": torch.from_numpy(job.dataset.labels[test]),
        }
        save_file(tensors, temporary, metadata={"dataset": job.dataset.name, "fingerprint": job.dataset.fingerprint})


def _facts(job: Job, run_hash: str) -> dict[str, Any]:
    """What a reader needs to know where the numbers come from."""
    config, sets, labels = job.config, job.sets, job.dataset.labels
    return {
        "split": {"name": job.split.name, "fid": job.split.fid},
        "sets": {name: _count(labels, getattr(sets, name)) for name in ("fit", "val", "test")},
        "steps": job.stop,
        "steps_per_epoch": job.steps_per_epoch,
        "notes": [*job.dataset.notes, *getattr(job.sampler, "notes", ())],
        "seed": config.seed,
        "identity": IDENTITY,
        "config_hash": run_hash,
        "weights": starting_weights(config),
        "device": str(job.processes.device),
        "processes": job.processes.count,
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "git_commit": git_commit(),
    }


def _count(labels: np.ndarray, indices: np.ndarray) -> dict[str, int]:
    return {"classes": len(np.unique(labels[indices])), "images": len(indices)}
