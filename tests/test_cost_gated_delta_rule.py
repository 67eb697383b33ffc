"""What the Metal kernels of gated_delta_rule read, write and do, to the byte."""

import sys
from dataclasses import replace

import pytest
import torch

from cases.gated_delta_rule import Case, slice_of_cache, transposed
from simulator import mps
from simulator.msl import Cost

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is the simulated device that counts")

Q, K, V, G, BETA, STATE, Y = range(7)  # buffers
ROWS = {
    "recurrent": 32,
    "chunked": 64,
}  # of the state that a threadgroup takes; the recurrent kernel: 16 of large heads

FEW = Case(B=2, T=6, Hk=2, Hv=4, Dk=64, Dv=40, dtype=torch.bfloat16, gate_dtype=torch.float16)
MANY = replace(FEW, T=21, Dv=72)
EVERY = [
    ("recurrent", FEW),
    ("recurrent", replace(FEW, per_channel=True, state_dtype=torch.bfloat16)),
    ("recurrent", replace(FEW, Dk=52, state_dtype=torch.float16)),
    ("recurrent", replace(FEW, T=1, Dk=128, dtype=torch.float32)),
    ("chunked", MANY),
    ("chunked", replace(MANY, per_channel=True)),
    ("chunked", replace(MANY, Dk=50, Dv=9, state_dtype=torch.float16)),
    ("chunked", replace(MANY, layout={"q": transposed, "v": transposed, "state": slice_of_cache})),
]


def cost(kernel: str, case: Case) -> Cost:
    call = case.call().copy("mps")
    with mps.record() as launches:
        call.run()
    (launch,) = launches
    assert kernel in launch.kernel
    return launch.run.cost


def per_head(case: Case) -> int:
    return case.B * case.Hv


def blocks(kernel: str, case: Case) -> int:
    """The threadgroups that share the rows of a state."""
    rows = 16 if kernel == "recurrent" and case.Dk > 128 else ROWS[kernel]
    return -(-case.Dv // rows)


@pytest.mark.parametrize("kernel, case", EVERY, ids=str)
def test_the_state_is_read_and_written_once(kernel, case):
    state = cost(kernel, case).buffers[STATE]
    size = per_head(case) * case.Dv * case.Dk * case.state_dtype.itemsize
    assert (state.read_bytes, state.distinct_read_bytes) == (size, size)
    assert (state.written_bytes, state.distinct_written_bytes) == (size, size)


@pytest.mark.parametrize("kernel, case", EVERY, ids=str)
def test_v_is_read_once_and_y_written_once(kernel, case):
    buffers = cost(kernel, case).buffers
    size = per_head(case) * case.T * case.Dv * case.dtype.itemsize
    assert (buffers[V].read_bytes, buffers[V].distinct_read_bytes) == (size, size)
    assert (buffers[Y].written_bytes, buffers[Y].distinct_written_bytes) == (size, size)
    assert buffers[V].writes == buffers[Y].reads == 0


@pytest.mark.parametrize("kernel, case", EVERY, ids=str)
def test_steps_are_read_once_a_threadgroup(kernel, case):
    """Each value head needs its key head's k and q, and each threadgroup of it those that its rows share."""
    buffers, groups = cost(kernel, case).buffers, per_head(case) * blocks(kernel, case)
    for buffer in (Q, K):
        assert buffers[buffer].read_bytes == groups * case.T * case.Dk * case.dtype.itemsize
        assert buffers[buffer].distinct_read_bytes == case.B * case.Hk * case.T * case.Dk * case.dtype.itemsize
    decays = case.Dk if case.per_channel else 1
    assert buffers[G].read_bytes == groups * case.T * decays * case.gate_dtype.itemsize
    assert buffers[BETA].read_bytes == groups * case.T * case.gate_dtype.itemsize


@pytest.mark.parametrize("kernel", ROWS)
def test_one_threadgroup_a_head_reads_everything_once(kernel):
    case = Case(B=2, T=20 if kernel == "chunked" else 5, Hk=3, Hv=3, Dk=64, Dv=32)
    buffers = cost(kernel, case).buffers
    for buffer in map(buffers.__getitem__, range(Y + 1)):
        assert buffer.read_bytes == buffer.distinct_read_bytes and buffer.written_bytes == buffer.distinct_written_bytes


def test_the_recurrent_kernel_moves_16_bytes_of_the_state_at_a_time():
    case = replace(FEW, Dk=128)
    state = cost("recurrent", case).buffers[STATE]
    assert state.reads == state.writes == state.read_bytes / 16


@pytest.mark.parametrize("Dk, lanes", [(64, 4), (128, 4), (256, 8)])
def test_a_sum_over_channels_takes_few_shuffles(Dk, lanes):
    case = replace(FEW, Dk=Dk)
    simdgroups = per_head(case) * -(-case.Dv // (32 // lanes))
    assert cost("recurrent", case).simd_operations == simdgroups * case.T * 2 * (lanes.bit_length() - 1)


@pytest.mark.parametrize("T", [1, 4, 5])
def test_a_barrier_before_four_steps_and_one_between(T):
    case = replace(FEW, T=T)
    fours = -(-T // 4)
    assert cost("recurrent", case).threadgroup_barriers == per_head(case) * blocks("recurrent", case) * (2 * fours - 1)


@pytest.mark.parametrize("per_channel", [False, True])
def test_products_of_matrices(per_channel):
    case = replace(MANY, per_channel=per_channel)
    chunks, tiles, simdgroups = -(-case.T // 8), case.Dk // 8, -(-case.Dv // 8)
    # k and q with the state, and its update; queries with updates
    products = per_head(case) * chunks * simdgroups * (3 * tiles + 1)
    if not per_channel:  # keys and queries with keys
        products += per_head(case) * chunks * blocks("chunked", case) * 2 * tiles
    assert cost("chunked", case).matrix_operations == products
