import sys

import pytest
import torch

import simulator
import torch_metal_ops  # noqa: F401, registers the ops

DEVICES = ["cpu", "mps"]

if sys.platform.startswith("linux"):
    simulator.activate(check=True)  # before anything asks torch whether there is an mps device


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each device that computes; the Meta kernel is held to the same table in test_contract.py."""
    if request.param == "mps" and not torch.backends.mps.is_available():
        pytest.skip("torch here has no mps device: it needs a Mac with Metal, or Linux for the simulated one")
    return request.param


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Every tensor that a kernel allocates starts as NaN, so that an element it does not write shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
