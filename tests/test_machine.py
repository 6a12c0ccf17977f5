"""What of the machine the process may use."""

from oodml._machine import cores
from oodml.study.engines.local import LocalEngine


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    """In a container or under `taskset` they are fewer than the machine has."""
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 5, 7, 9}, raising=False)
    assert cores() == 4
    assert (LocalEngine().workers, LocalEngine(workers=2).threads) == (4, 2)
