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
from oodml.models.features import SMALLEST_INPUT
from oodml.training import distributed
from oodml.training.checkpoint import Checkpoints, resume
from oodml.training.distributed import Processes
from oodml.training.embedder import starting_backbone
from oodml.training.job import Job, build_job, prepare_images
from oodml.training.loggers import check_installed, open_display, open_loggers
from oodml.training.loop import fit
from oodml.training.progress import BEST_ON_TEST, LAST, SELECTED, BestModels, Progress
from oodml.training.result import (
    FORMAT,
    Result,
    check_folder,
    final_scores,
    gain,
    git_commit,
    load_result,
    names_key,
    versions,
)
from oodml.training.scoring import TEST_EMBEDDINGS, embed_set, score, score_untrained, structure_scores
from oodml.training.stopping import stop_requests

Tensors = dict[str, torch.Tensor]


def train(config: RunConfig | Mapping[str, Any], dataset: Dataset | None = None) -> Result:
    """Train an embedder and measure it on classes it has not seen.

    Called again with the same settings and `out`, an unfinished run is resumed and a finished one is read. Give a
    `dataset` that is already loaded to save loading it again.
    """
    config = config if isinstance(config, RunConfig) else RunConfig(**config)
    settings = config.resolved()
    run_hash = settings.hash()
    out = Path(settings.out or f"runs/{settings.dataset_name}-{settings.method['name']}-{run_hash[:8]}")  # type: ignore[index]
    finished = check_folder(out, settings, run_hash)
    if finished is not None:
        _warn_of_changed_images(finished, settings, dataset)
        return finished
    processes = distributed.join(settings.device)
    dataset = dataset if dataset is not None else load_dataset(settings.dataset)
    search = None
    if settings.selection == "val-then-full":
        search = train(settings.model_copy(update={"selection": "val", "out": str(out / "search")}), dataset)
    _run(settings, run_hash, out, dataset, processes, search)
    return load_result(out)


def _warn_of_changed_images(finished: Result, settings: RunConfig, dataset: Dataset | None) -> None:
    try:
        dataset = dataset if dataset is not None else load_dataset(settings.dataset)
    except OodmlError:  # a result can be read without the images
        return
    if finished.data["dataset"].get("loaded", dataset.fingerprint) != dataset.fingerprint:
        warnings.warn(
            f"The images of {dataset.name!r} have changed since the run {finished.path} was trained; this is its old "
            "result. Remove the folder, or choose another `out`, to train again.",
            stacklevel=3,
        )


def _run(
    settings: RunConfig, run_hash: str, out: Path, dataset: Dataset, processes: Processes, search: Result | None
) -> None:
    """One pass of the loop, and its result written; after a `search`, on all train classes for its number of epochs."""
    began = time.perf_counter()
    config, stop_at = settings, None
    facts: dict[str, Any] = {"selection": settings.selection, "config": settings.portable_dict()}
    if search is not None:
        chosen = search.data["selected"]
        config = settings.model_copy(update={"selection": "last"})
        stop_at = chosen["step"] if settings.steps else chosen["epoch"]
        facts["search"] = {key: chosen[key] for key in ("step", "epoch", "val")}
    backbone = starting_backbone(config)  # before the images, which may take minutes to decode
    logged_to = config.logger if processes.is_main else None
    check_installed(logged_to)
    job = build_job(config, out, prepare_images(config, dataset, processes), backbone, processes, stop_at)
    progress = resume(job, run_hash)
    best = BestModels(out / "kept", progress)
    progress.untrained = progress.untrained or score_untrained(job)
    started = began - progress.seconds
    with (
        stop_requests() as stop,
        open_loggers(logged_to, out, config.as_dict()) as loggers,
        open_display(job, loggers, progress.step) as display,
    ):
        checkpoints = Checkpoints(job, settings, run_hash, progress.step, started)
        try:
            fit(job, progress, best, checkpoints, display, stop)
        finally:
            checkpoints.finish()  # also when the loop fails: what was saved must be on disk before anyone reads it
    facts["dataset"] = {
        "name": job.dataset.name,
        "fingerprint": job.dataset.fingerprint,
        "loaded": dataset.fingerprint,
        "names": names_key(job.dataset),
    }
    seconds = time.perf_counter() - started + (search.data["seconds"] if search else 0.0)
    _write_result(job, progress, best, run_hash, {**facts, "seconds": round(seconds, 2)})


def _write_result(job: Job, progress: Progress, best: BestModels, run_hash: str, facts: dict[str, Any]) -> None:
    """Score the best models with every metric, and write the embedder, the test embeddings and result.json."""
    processes, labels, sets = job.processes, job.dataset.labels, job.sets
    kept = {name: best.tensors(name) if processes.is_main else {} for name in (SELECTED, LAST, BEST_ON_TEST)}
    report = _score_best(job, progress, kept)
    weights = {key: value for key, value in kept[SELECTED].items() if key != TEST_EMBEDDINGS}
    if processes.is_main:
        job.embedder.load_state_dict(weights, strict=False)
    distributed.synchronise(job.embedder)
    embeddings = {"train": (embed_set(job, sets.fit), sets.fit), "test": (_test_of(kept[SELECTED], job), sets.test)}
    structure = {side: structure_scores(rows, labels[at], processes) for side, (rows, at) in embeddings.items()}
    if processes.is_main:
        _write_tensors(job, kept[SELECTED], weights)
        data = {
            "format": FORMAT,
            **report,
            "untrained": progress.untrained,
            "gain": gain(final_scores(report), progress.untrained),
            "structure": structure,
            "evaluations": len(progress.history),
            "train_seconds": round(progress.train_seconds, 3),
            "images_per_second": round(float(np.median(progress.rates)), 1),
            **facts,
            **_facts(job, run_hash),
        }
        write_json(job.out / "result.json", data)
    processes.barrier()


def _score_best(job: Job, progress: Progress, kept: Mapping[str, Tensors]) -> dict[str, Any]:
    """Step, epoch and every metric of the test classes for each of the best models; a model is scored once."""
    rows = {row["step"]: row for row in progress.history}
    report: dict[str, Any] = {}
    scored: dict[int, dict[str, float]] = {}
    for name, tensors in kept.items():
        best = progress.kept[name]
        if job.config.selection == "test":  # every evaluation scored every metric
            scored[best.step] = rows[best.step]["test"]
        elif best.step not in scored:
            labels = job.dataset.labels[job.sets.test]
            scored[best.step] = score(_test_of(tensors, job), labels, job.config.metrics, job.processes)
        report[name] = {"step": best.step, "epoch": round(best.epoch, 4), "scores": scored[best.step]}
        report[name] |= {"val": rows[best.step]["val"]} if "val" in rows[best.step] else {}
    if job.config.selection == "test":
        report["maxima"] = progress.maxima()
    return report


def _test_of(tensors: Tensors, job: Job) -> torch.Tensor:
    """The test embeddings that were kept with a model; processes other than the main one have none."""
    return tensors.get(TEST_EMBEDDINGS, torch.empty(0)).to(job.processes.device)


def _write_tensors(job: Job, kept: Tensors, weights: Tensors) -> None:
    test = job.sets.test
    context = job.method.context
    about = {
        "num_classes": context.num_classes,
        "embedding_dim": context.embedding_dim,
        "feature_dim": context.feature_dim,
        "total_steps": context.total_steps,
    }
    short_side, size = job.dataset.transforms.short_side, job.dataset.image_size
    transforms = {"size": size, "short_side": short_side}
    transforms["input"] = max(size, SMALLEST_INPUT) if job.config.train == "head" else size
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
    """Where the numbers come from."""
    config, sets, labels = job.config, job.sets, job.dataset.labels

    def count(indices: np.ndarray) -> dict[str, int]:
        return {"classes": len(np.unique(labels[indices])), "images": len(indices)}

    return {
        "split": {"name": job.split.name, "fid": job.split.fid},
        "sets": {"fit": count(sets.fit), "val": count(sets.val), "test": count(sets.test)},
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
