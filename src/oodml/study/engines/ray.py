"""Runs as tasks of a Ray cluster; a task whose node dies is started again on another node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oodml._errors import OodmlError
from oodml.study.engines.execute import Outcome, execute
from oodml.study.grid import PlannedRun
from oodml.study.store import Store

RETRIES = 3  # of a run whose node or process died; a run that raised an error is not repeated


class RayEngine:
    """Joins the cluster at `address` (None: one of this machine). Every run requests `cpus` and `gpus`.

    `gpus` may be a fraction: 0.25 puts four runs on a GPU. None: one where the cluster has any, else none. The nodes
    need oodml and the dataset at the path of its settings; a store behind a URL needs no common disk.
    """

    def __init__(self, address: str | None = None, cpus: float = 1, gpus: float | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise OodmlError("The engine 'ray' needs Ray: pip install 'oodml[ray]'.") from error
        self.ray, self.cpus = ray, cpus
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, configure_logging=False)
            except (ConnectionError, ValueError) as error:
                raise OodmlError(f"The Ray cluster at {address!r} cannot be joined: {error}") from error
        self.gpus = gpus if gpus is not None else float(ray.cluster_resources().get("GPU", 0) >= 1)

    def __call__(self, runs: list[PlannedRun], store: Store) -> Iterator[tuple[PlannedRun, Outcome]]:
        """Hand all runs to the cluster and give each back when it has ended."""
        if type(store) is Store:
            store = Store(store.root.absolute())  # the nodes have another current folder
        options: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": RETRIES}
        task = self.ray.remote(**options)(_task)
        # One object each: they are small, and a lost node loses no shared object.
        under_way = {task.remote(run, store, int(self.cpus) or 1): run for run in runs}
        try:
            while under_way:
                ended, _ = self.ray.wait(list(under_way), num_returns=1)
                for reference in ended:
                    run = under_way.pop(reference)
                    yield run, self._outcome(reference, run, store)
        finally:
            for reference in under_way:
                self.ray.cancel(reference)

    def _outcome(self, reference: Any, run: PlannedRun, store: Store) -> Outcome:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            store.record_failure(run.id, f"Ray lost the run {RETRIES + 1} times: {error}")
            return "failed"


def _task(run: PlannedRun, store: Store, threads: int) -> Outcome:
    import torch

    torch.set_num_threads(threads)
    return execute(run, store)
