"""Freed memory is kept: counted in page faults, in a process of its own, because the setting stays."""

import subprocess
import sys

import pytest

COUNT = """
import resource, sys
import torch
from oodml.training.job import keep_freed_memory

if sys.argv[1] == "kept" and not keep_freed_memory():
    print("none")
    sys.exit()
def step():
    arrays = [torch.ones(2**21) for _ in range(4)]  # 8 MB each
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10)
"""


def faults(how: str) -> float:
    command = [sys.executable, "-c", COUNT, how]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if found == "none":
        pytest.skip("this C library has no such setting")
    return float(found)


def test_a_step_does_not_fault_its_memory_in_again():
    assert faults("kept") < 100 < faults("as it comes")
