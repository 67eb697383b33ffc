"""What every op promises, on every case of its table: the reference, Meta, opcheck, the shim, repeatable bits."""

import sys
from pathlib import Path

import pytest
import torch

import simulator.mps
import simulator.msl
import torch_metal_ops._C
from cases import Call, gated_delta_rule, gather_qmv, sdpa
from shim import call_shim
from tolerances import check, same_bits

CASES = [
    pytest.param(case, id=f"{module.__name__.rpartition('.')[2]}-{case}")
    for module in (sdpa, gather_qmv, gated_delta_rule)
    for case in module.CASES
]
each_case = pytest.mark.parametrize("case", CASES)
KERNELS = Path(__file__).parents[1] / "csrc" / "mps" / "kernels"
ran_on_mps: set[int] = set()  # the ids of cases


def check_results(call: Call, results: tuple[torch.Tensor, ...], truth, eager) -> None:
    for actual, expected, plain in zip(results, truth, eager, strict=True):
        check(actual, expected, plain.to(actual.dtype))


@each_case
def test_matches_reference(case, device):
    call = case.call()
    truth = call.reference(torch.float64)
    eager = call.reference(call.eager_dtype or call.args[0].dtype)
    call = call.copy(device)
    check_results(call, call.run(), truth, eager)
    if device == "mps":
        ran_on_mps.add(id(case))


@each_case
def test_meta_agrees(case):
    call = case.call()
    on_meta = call.copy("meta")
    real, meta = call.run()[0], on_meta.run()[0]
    assert (meta.shape, meta.stride(), meta.dtype) == (real.shape, real.stride(), real.dtype)


@each_case
def test_opcheck(case):
    call = case.call()
    checks = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if has_nan := any(result.isnan().any() for result in call.copy().run()):
        checks.pop()  # it takes one NaN for different from another
    torch.library.opcheck(call.op, call.args, call.kwargs, test_utils=checks)
    if has_nan:
        check_aot_dispatch(call)


def check_aot_dispatch(call: Call) -> None:
    """What opcheck's test_aot_dispatch_dynamic does, with NaN equal to NaN."""
    torch._dynamo.reset()
    traced = torch.compile(call.op, backend="aot_eager", fullgraph=True, dynamic=True)
    expected, call = call.copy().run(), call.copy()
    results = (traced(*call.args, **call.kwargs), *call.mutated())
    torch.testing.assert_close(results, expected, equal_nan=True)


@each_case
def test_shim_agrees(case, device):
    call = case.call().copy(device)
    through_shim = call.copy()
    expected = call.run()
    result = call_shim(through_shim.op, *through_shim.args, **through_shim.kwargs)
    for a, b in zip(expected, (result, *through_shim.mutated()), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and same_bits(a, b)


@each_case
def test_same_bits_whatever_the_threads(case):
    call = case.call()
    threads = torch.get_num_threads()
    runs = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            runs.append(call.copy().run())
    finally:
        torch.set_num_threads(threads)
    for run in runs[1:]:
        assert all(same_bits(a, b) for a, b in zip(runs[0], run, strict=True))


on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the simulated device: Linux")


@on_linux
def test_every_metal_kernel_that_can_be_chosen_is_there_and_no_other():
    written = {
        f"{path.stem}/{name}"
        for path in KERNELS.glob("*.metal")
        for name in simulator.msl.compile(path, include_dirs=[KERNELS]).names
    }
    assert written == set(torch_metal_ops._C.metal_kernels())


@on_linux
def test_every_metal_kernel_is_reached_by_a_case():
    if len(ran_on_mps) < len(CASES):
        pytest.skip("only a part of the cases ran on mps in this session; it needs all of them")
    reached = {"/".join(launch) for launch in simulator.mps.launched}
    assert set(torch_metal_ops._C.metal_kernels()) - reached == set()
