"""What the contract says of every error: the same sentence on every device and through the shim."""

from collections.abc import Callable

import expecttest
import pytest
import torch

from cases import Call
from shim import call_shim
from tolerances import same_bits


def _raised(expected: type[Exception], run: Callable[[], object]) -> str:
    with pytest.raises(expected) as caught:
        run()
    return str(caught.value).splitlines()[0]


def expect_error(error: type[Exception], call: Call, text: str) -> None:
    """Assert that ``call``, made on the CPU, raises ``text`` on CPU, Meta, MPS where there is one, and through the shim.

    Nothing may have been computed before: every tensor argument is bit for bit what it was.
    """
    devices = ["cpu", "meta"]
    if torch.backends.mps.is_available() and torch.float64 not in [tensor.dtype for tensor in call.tensors()]:
        devices.append("mps")  # which has no float64
    before = call.copy()
    said = {device: _raised(error, call.copy(device).run) for device in devices}
    said["shim"] = _raised(RuntimeError, lambda: call_shim(call.op, *call.args, **call.kwargs))
    for was, now in zip(before.tensors(), call.tensors(), strict=True):
        assert same_bits(was, now)
    assert len(set(said.values())) == 1, said
    expecttest.assert_expected_inline(said["cpu"], text, skip=1)
