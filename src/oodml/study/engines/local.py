"""Runs as processes of this machine: one a core without a GPU, as many as fit into each GPU with them.

A worker process does one run after the other. One that dies (killed by the system for its memory, say) is noticed:
its run is recorded as failed, another worker takes its place and the others go on. A worker whose coordinator dies
saves its run and leaves. It never imports the caller's script, which so needs no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from oodml._errors import OodmlError
from oodml._machine import cores
from oodml.study.engines.execute import Outcome, execute
from oodml.study.engines.limit import stopping_after
from oodml.study.engines.packing import Packing, Size, size_of
from oodml.study.engines.registered import Registration, hidden_main, registrations, take_in
from oodml.study.plan import PlannedRun
from oodml.study.store import Store

LEAVE_SECONDS = 30.0  # time a worker has to save its run when the study is stopped
_SPAWN = multiprocessing.get_context("spawn")  # a forked copy of torch's thread pool would hang


@dataclass(frozen=True)
class Job:
    """A run under way, and the GPU it was given (None: the one its settings choose)."""

    run: PlannedRun
    device: str | None
    size: Size


class LocalEngine:
    """`workers` processes side by side; by default one a core (CPU), or what GPU memory and cores allow.

    After `seconds` (None: never) what runs is stopped, and what waits is left; only what has ended is given back.
    """

    def __init__(self, workers: int | None = None, seconds: float | None = None) -> None:
        if workers is not None and workers < 1:
            raise OodmlError(f"workers must be at least 1, got {workers}.")
        self.workers = workers or cores()
        self.threads = max(1, cores() // self.workers)  # small batches gain little from threads, runs side by side all
        self.until = None if seconds is None else time.monotonic() + seconds

    def __call__(self, runs: list[PlannedRun], store: Store) -> Iterator[tuple[PlannedRun, Outcome]]:
        """Execute the runs and give each back when it has ended."""
        on_gpu = torch.cuda.is_available() and any(run.config.device != "cpu" for run in runs)
        if min(self.workers, len(runs)) < 2:
            yield from _one_by_one(runs, store, self.until)
            return
        packing = Packing(_gpu_memory()) if on_gpu else None
        yield from _Pool(self.workers, self.threads, packing, self.until).run(runs, store)


def _one_by_one(runs: list[PlannedRun], store: Store, until: float | None) -> Iterator[tuple[PlannedRun, Outcome]]:
    """The runs in this process."""
    for run in runs:
        outcome: Outcome | None = None
        with stopping_after(_left(until)):
            outcome = execute(run, store)
        if outcome is None:
            return
        yield run, outcome


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


class Worker:
    """A process that executes runs, and the pipe to it."""

    def __init__(self, threads: int) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        given = (theirs, threads, registrations())
        self.process: BaseProcess = _SPAWN.Process(target=_serve, args=given, name="oodml-run")
        with hidden_main():
            self.process.start()
        theirs.close()  # so that our end reads "end of file" when the process ends

    def give(self, job: Job, store: Store) -> bool:
        """Hand it a run; False when the process has died."""
        try:
            self.pipe.send((job.run, store, job.device))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def answer(self) -> tuple[Outcome, int] | None:
        """Outcome and peak GPU memory of the run; None when the process died."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return None

    def ask_to_leave(self) -> None:
        """End it: an idle one at once, a busy one after it has saved its run."""
        self.pipe.close()
        if self.process.is_alive():
            self.process.terminate()

    def end(self) -> None:
        self.process.join(LEAVE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class _Pool:
    def __init__(self, workers: int, threads: int, packing: Packing | None, until: float | None = None) -> None:
        self.workers, self.threads, self.packing, self.until = workers, threads, packing, until
        self.idle: list[Worker] = []
        self.busy: dict[Worker, Job] = {}

    def run(self, runs: list[PlannedRun], store: Store) -> Iterator[tuple[PlannedRun, Outcome]]:
        waiting = deque(runs)
        try:
            while waiting or self.busy:
                while waiting and (job := self._place(waiting[0])):
                    self._start(job, store)
                    waiting.popleft()
                pipes: dict[Any, Worker] = {worker.pipe: worker for worker in self.busy}
                ended = wait(list(pipes), _left(self.until))
                if not ended:  # the time is up
                    return
                for pipe in ended:
                    yield self._end(pipes[pipe], store)
        finally:
            workers = [*self.idle, *self.busy]
            for worker in workers:
                worker.ask_to_leave()
            for worker in workers:
                worker.end()

    def _place(self, run: PlannedRun) -> Job | None:
        """The run with a place to run it, or None while there is none."""
        if len(self.busy) >= self.workers:
            return None
        if self.packing is None:
            return Job(run, None, ())
        size = size_of(run)
        tenants = [(job.device, job.size) for job in self.busy.values() if job.device is not None]
        device = self.packing.place(size, tenants)
        return Job(run, device, size) if device else None

    def _start(self, job: Job, store: Store) -> None:
        worker = self._give_to_idle(job, store)
        if worker is None:
            worker = Worker(self.threads)
            worker.give(job, store)  # should it die at once, its answer will say so
        self.busy[worker] = job

    def _give_to_idle(self, job: Job, store: Store) -> Worker | None:
        """The idle worker that took the run, if there is one; those that died while idle took nothing with them."""
        while self.idle:
            worker = self.idle.pop()
            if worker.give(job, store):
                return worker
            worker.ask_to_leave()
            worker.end()
        return None

    def _end(self, worker: Worker, store: Store) -> tuple[PlannedRun, Outcome]:
        job, answer = self.busy.pop(worker), worker.answer()
        if answer is not None:
            self.idle.append(worker)
            outcome, peak = answer
            if self.packing is not None and outcome == "done":
                self.packing.learn(job.size, peak)
            return job.run, outcome
        code = worker.process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        advice = " Out of memory? Use fewer workers or a smaller batch." if code == -signal.SIGKILL else ""
        store.record_failure(job.run.id, f"The process of the run was {how}.{advice}")
        return job.run, "failed"


def _serve(pipe: Connection, threads: int, registered: list[Registration]) -> None:
    """The life of a worker: a run, its outcome, the next one, until the pipe closes."""
    torch.set_num_threads(threads)
    threading.Thread(target=_follow_parent, daemon=True).start()
    take_in(registered)
    while True:
        try:
            run, store, device = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            outcome = execute(run, store, device)
        except KeyboardInterrupt:  # asked to stop: the run has saved its state
            return
        try:
            pipe.send((outcome, _peak_memory(device)))
        except (KeyboardInterrupt, BrokenPipeError, ConnectionResetError):  # stopped as the run ended: its result stays
            return


def _follow_parent() -> None:
    """When the coordinator dies, ask our own run to save and stop."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _gpu_memory() -> dict[str, int]:
    """Free bytes by GPU, before any run of ours."""
    return {f"cuda:{i}": torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())}


def _peak_memory(device: str | None) -> int:
    """The most this process has held on the GPU since the last run; what it holds now is given back."""
    if device is None:
        return 0
    peak = torch.cuda.max_memory_reserved(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return peak
