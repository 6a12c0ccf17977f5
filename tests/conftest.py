"""What holds for every test: random numbers without a generator of their own come out the same each time, and no
example is judged by how long a busy machine took for it."""

import shutil

import pytest
import torch
from hypothesis import settings

settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")


def pytest_runtest_setup(item: pytest.Item):
    if item.get_closest_marker("compiler") and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("torch.compile needs a C compiler; none is installed")


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)
