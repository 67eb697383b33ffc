"""Our ops as a part of what runs on the GPU: in order with torch's own kernels, on views, within a chip's limits."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from dynamic_calls import quantized_weights
from torch import Tensor

from cases import gated_delta_rule as gdr_cases
from cases import gather_qmv as gqmv_cases
from cases import sdpa as sdpa_cases
from tolerances import same_bits
from torch_metal_ops import gated_delta_rule, gather_qmv, sdpa

pytestmark = pytest.mark.skipif(not torch.backends.mps.is_available(), reason="torch here has no mps device")
simulated = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only the simulated device can be told")

SINE = """
#include <metal_stdlib>
using namespace metal;
kernel void sine(device float* out, device const float* x, uint i [[thread_position_in_grid]]) { out[i] = sin(x[i]); }
"""


@pytest.fixture(scope="module")
def sine():
    """A kernel that is enqueued, and waited for by nobody, as torch.sin is on a GPU."""
    library = torch.mps.compile_shader(SINE)

    def call(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        library.sine(out, x)
        return out

    return call


def delta_inputs(device: str) -> tuple[Tensor, ...]:
    q = F.normalize(torch.randn(2, 5, 3, 16), dim=-1)  # as a key must be, or the state grows without end
    g = torch.rand(2, 5, 3)
    return tuple(tensor.to(device) for tensor in (q, g, torch.randn(2, 3, 16, 16)))


def test_between_kernels_of_others_without_synchronisation(sine):
    q = torch.randn(1, 4, 6, 16)
    moved = q.to("mps")
    result = sine(sdpa(sine(sdpa(sine(moved), moved, moved)), moved, moved))
    expected = sdpa(sdpa(q.sin(), q, q).sin(), q, q).sin()
    torch.testing.assert_close(result.cpu(), expected)


def test_between_torchs_own(device):
    q = torch.randn(1, 4, 6, 16)
    moved = q.to(device)
    result = torch.sin(sdpa(torch.sin(moved), moved, moved))
    torch.testing.assert_close(result.cpu(), torch.sin(sdpa(torch.sin(q), q, q)))


def test_twice_in_a_row():
    q, g, state = delta_inputs("cpu")
    mq, mg, mstate = q.to("mps"), g.to("mps"), state.to("mps")
    for _ in range(2):
        first = gated_delta_rule(mq, mq, mq, mg, mg, mstate)
        second = gated_delta_rule(first, mq, mq, mg, mg, mstate)
        expected = gated_delta_rule(gated_delta_rule(q, q, q, g, g, state), q, q, g, g, state)
    torch.testing.assert_close(second.cpu(), expected)
    torch.testing.assert_close(mstate.cpu(), state)


def test_inputs_live_until_the_launch_ran():
    x, experts = torch.randn(3, 64), torch.tensor([[0, 1], [2, 0], [1, 1]])
    weights = quantized_weights(3, 10, 64)
    expected = gather_qmv(x, *weights, experts, 32)
    moved = [tensor.to("mps") for tensor in (x, *weights, experts)]
    result = gather_qmv(*moved, 32)
    del moved
    gc.collect()
    overwritten = [torch.full((1000,), 7.0, device="mps") for _ in range(4)]  # may get what was freed
    torch.testing.assert_close(result.cpu(), expected)
    del overwritten


def test_from_several_threads():
    q = torch.randn(6, 1, 4, 6, 16)
    expected = [sdpa(torch.sin(x), x, x) for x in q]

    def work(x: Tensor) -> Tensor:
        moved = x.to("mps")
        return sdpa(torch.sin(moved), moved, moved).cpu()

    with ThreadPoolExecutor(4) as pool:
        for actual, wanted in zip(pool.map(work, q), expected, strict=True):
            torch.testing.assert_close(actual, wanted)


def test_a_slice_of_the_states_is_mutated_in_place():
    q, g, _ = delta_inputs("cpu")
    states = torch.randn(4, 2, 3, 16, 16)
    moved = states.to("mps")
    before = states.clone()
    mq, mg = q.to("mps"), g.to("mps")
    result = gated_delta_rule(mq, mq, mq, mg, mg, moved[2])
    expected = gated_delta_rule(q, q, q, g, g, states[2])
    torch.testing.assert_close(result.cpu(), expected)
    torch.testing.assert_close(moved[2].cpu(), states[2])
    assert moved[[0, 1, 3]].cpu().equal(before[[0, 1, 3]])


def test_a_cache_that_is_filled_in_place():
    """Each step writes its key and value into a slice of the cache and attends to what is there."""
    keys, values = torch.full((2, 1, 2, 8, 16), float("nan"))
    moved_keys, moved_values = keys.to("mps"), values.to("mps")
    for step in range(4):
        q, k, v = torch.randn(1, 4, 1, 16), torch.randn(1, 2, 1, 16), torch.randn(1, 2, 1, 16)
        results = []
        for cache_k, cache_v, device in ((keys, values, "cpu"), (moved_keys, moved_values, "mps")):
            cache_k[:, :, step : step + 1] = k.to(device)
            cache_v[:, :, step : step + 1] = v.to(device)
            used = torch.tensor([step + 1], device=device)
            result = sdpa(q.to(device), cache_k, cache_v, enable_gqa=True, seqused_k=used)
            results.append(result.cpu())
        torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("offset", [1, 2, 3, 5])
def test_storage_offsets(offset: int):
    """Views that begin anywhere: only the alignment of an element can be relied on."""

    def view(tensor: Tensor) -> Tensor:
        flat = torch.full((tensor.numel() + offset,), float("nan"), dtype=tensor.dtype)
        flat[offset:] = tensor.flatten()
        return flat.to("mps")[offset:].view(tensor.shape)

    q, x = torch.randn(1, 4, 6, 64).half(), torch.randn(3, 64)
    weights = quantized_weights(3, 10, 64)
    experts = torch.tensor([[0, 1], [2, 0], [1, 1]])
    torch.testing.assert_close(sdpa(*[view(q)] * 3).cpu(), sdpa(q, q, q))
    moved = [tensor.to("mps") for tensor in (*weights, experts)]
    torch.testing.assert_close(gather_qmv(view(x), *moved, 32).cpu(), gather_qmv(x, *weights, experts, 32))
    (dq, g, state) = delta_inputs("cpu")
    mstate = view(state)
    actual = gated_delta_rule(*[view(dq)] * 3, view(g), view(g), mstate)
    torch.testing.assert_close(actual.cpu(), gated_delta_rule(dq, dq, dq, g, g, state))
    torch.testing.assert_close(mstate.cpu(), state)


@pytest.fixture
def limit():
    from simulator import mps

    yield mps.set_max_threads
    mps.set_max_threads()


@simulated
@pytest.mark.parametrize("threads", [512, 832])
@pytest.mark.parametrize("module", [sdpa_cases, gqmv_cases, gdr_cases], ids=lambda m: m.__name__.rpartition(".")[2])
def test_smaller_threadgroups(module, threads: int, limit):
    """Some chips allow a kernel no 1024 threads; a larger launch would be dropped without a word."""
    for case in module.CASES[::7]:
        call = case.call().copy("mps")
        expected = [result.cpu() for result in call.copy().run()]
        limit(threads)
        actual = [result.cpu() for result in call.run()]
        limit()
        assert all(same_bits(a, b) for a, b in zip(actual, expected, strict=True))


@simulated
def test_a_limit_that_is_too_small_is_an_error(limit):
    q = torch.randn(1, 4, 6, 64, device="mps")
    limit(16)
    with pytest.raises(RuntimeError, match="got a limit of 16 on this GPU"):
        sdpa(q, q, q)
