"""Runs as processes of this machine: one per core without a GPU, as many as fit into the memory of each GPU with them.

A worker process does one run after the other. If it dies (for example killed by the system for its memory), its run is
recorded as failed, another worker replaces it and the others continue. A worker whose coordinator dies saves its run
and stops. It never imports the caller's script, which therefore needs no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import torch

from oodml._errors import OodmlError
from oodml._machine import cores
from oodml.study.engines.execute import Outcome, execute
from oodml.study.engines.registered import Registration, hidden_main, register_all, registrations
from oodml.study.grid import PlannedRun
from oodml.study.store import Store

STOP_SECONDS = 30.0  # time a worker has to save its run when the study is stopped
REPEAT_SECONDS = 3.0  # until the exception is raised again where it was swallowed
SHARE = 0.9  # of a GPU's memory that runs may fill
CONTEXT = 600 << 20  # bytes that CUDA itself takes for each process
Size = tuple[str | int | None, ...]
_SPAWN = multiprocessing.get_context("spawn")  # a forked copy of torch's thread pool would hang


@dataclass(frozen=True)
class Job:
    """A run under way, and the GPU it was given (None: the one its settings choose)."""

    run: PlannedRun
    device: str | None
    size: Size


class LocalEngine:
    """`workers` processes side by side; by default one per core (CPU), or what GPU memory and cores allow.

    After `seconds` (None: never) all runs are stopped; only those that have ended are given back.
    """

    def __init__(self, workers: int | None = None, seconds: float | None = None) -> None:
        if workers is not None and workers < 1:
            raise OodmlError(f"workers must be at least 1, got {workers}.")
        self.workers = workers or cores()
        self.threads = max(1, cores() // self.workers)  # small batches gain little from threads
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

    def send(self, job: Job, store: Store) -> bool:
        """Send it a run; False when the process has died."""
        try:
            self.pipe.send((job.run, store, job.device))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> tuple[Outcome, int] | None:
        """Outcome and peak GPU memory of the run; None when the process died."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return None

    def stop(self) -> None:
        """Stop it: an idle worker at once, a busy one after it has saved its run."""
        self.pipe.close()
        if self.process.is_alive():
            self.process.terminate()

    def join(self) -> None:
        self.process.join(STOP_SECONDS)
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
                while waiting and (job := self._assign(waiting[0])):
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
                worker.stop()
            for worker in workers:
                worker.join()

    def _assign(self, run: PlannedRun) -> Job | None:
        """The run with a device, or None while there is no free one."""
        if len(self.busy) >= self.workers:
            return None
        if self.packing is None:
            return Job(run, None, ())
        size = size_of(run)
        running = [(job.device, job.size) for job in self.busy.values() if job.device is not None]
        device = self.packing.choose_device(size, running)
        return Job(run, device, size) if device else None

    def _start(self, job: Job, store: Store) -> None:
        worker = self._send_to_idle(job, store)
        if worker is None:
            worker = Worker(self.threads)
            worker.send(job, store)  # if it dies at once, `receive` returns None
        self.busy[worker] = job

    def _send_to_idle(self, job: Job, store: Store) -> Worker | None:
        """The idle worker that received the run, if there is one; workers that died while idle are removed."""
        while self.idle:
            worker = self.idle.pop()
            if worker.send(job, store):
                return worker
            worker.stop()
            worker.join()
        return None

    def _end(self, worker: Worker, store: Store) -> tuple[PlannedRun, Outcome]:
        job, received = self.busy.pop(worker), worker.receive()
        if received is not None:
            self.idle.append(worker)
            outcome, peak = received
            if self.packing is not None and outcome == "done":
                self.packing.record(job.size, peak)
            return job.run, outcome
        code = worker.process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        advice = " Out of memory? Use fewer workers or a smaller batch." if code == -signal.SIGKILL else ""
        store.record_failure(job.run.id, f"The process of the run was {how}.{advice}")
        return job.run, "failed"


def _serve(pipe: Connection, threads: int, registered: list[Registration]) -> None:
    """The loop of a worker: receive a run, send its outcome, until the pipe closes."""
    torch.set_num_threads(threads)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    register_all(registered)
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


def _stop_with_parent() -> None:
    """When the coordinator dies, have our own run save and stop."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _gpu_memory() -> dict[str, int]:
    """Free bytes by GPU, before the first run."""
    return {f"cuda:{i}": torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())}


def _peak_memory(device: str | None) -> int:
    """The most memory this process has held on the GPU since the last run; what it holds now is freed."""
    if device is None:
        return 0
    peak = torch.cuda.max_memory_reserved(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def size_of(run: PlannedRun) -> Size:
    """What a run's memory depends on: runs with the same size need the same."""
    settings = run.config.resolved()
    method = settings.method or ""
    name = method if isinstance(method, str) else method["name"]
    return settings.backbone, settings.train, settings.batch_size, settings.embedding_dim, settings.grad_cache, name


@dataclass
class Packing:
    """Which GPU a run goes to: as many small runs side by side as its memory (bytes) holds, by what runs of each size
    needed at their peak."""

    memory: Mapping[str, int]
    needs: dict[Size, int] = field(default_factory=dict)

    def choose_device(self, size: Size, running: Sequence[tuple[str, Size]]) -> str | None:
        """The GPU with most free memory for a run next to those `running` (device, size); None: wait.

        A run of an unknown size goes to an empty GPU and has it alone, until its need is known.
        """
        best: tuple[int, str] | None = None
        for device, memory in self.memory.items():
            there = [each for where, each in running if where == device]
            if there and (size not in self.needs or any(each not in self.needs for each in there)):
                continue
            free = int(SHARE * memory) - sum(self.needs[each] for each in there)
            if (not there or self.needs[size] <= free) and (best is None or free > best[0]):
                best = free, device
        return best[1] if best else None

    def record(self, size: Size, peak: int) -> None:
        """Note the peak of a run that ended (bytes of tensors and cached blocks)."""
        self.needs[size] = max(self.needs.get(size, 0), peak + CONTEXT)


class _TimeIsUp(BaseException):
    """Not an Exception: a run must not report it as a failure."""


@contextlib.contextmanager
def stopping_after(seconds: float | None) -> Iterator[None]:
    """Leave the block without an error when the time is up, whatever it waits for (only in the main thread).

    The interrupted code may turn the exception into another one, or swallow it (as starting a thread does): it is
    raised again every few seconds until the block is left, but not while the block cleans up. None: no limit.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if not _is_being_handled():
            raise _TimeIsUp

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds), REPEAT_SECONDS)
    try:
        yield
    except _TimeIsUp:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _is_being_handled() -> bool:
    """Whether the time is up already: this is a `finally`, an `except` or the end of a `with`."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, _TimeIsUp):
        error = error.__context__
    return error is not None
