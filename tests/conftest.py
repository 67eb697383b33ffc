import pytest
import torch

import torch_metal_ops  # noqa: F401, registers the ops

DEVICES = ["cpu", "mps"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each device that computes; the Meta kernel is held to the same table in test_contract.py."""
    if request.param == "mps" and not torch.backends.mps.is_available():
        pytest.skip("torch here has no mps device: it needs a Mac, or the simulated one, which is not written yet")
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
