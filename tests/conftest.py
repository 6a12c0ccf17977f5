"""What holds for every test: random numbers without a generator of their own come out the same each time."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)
