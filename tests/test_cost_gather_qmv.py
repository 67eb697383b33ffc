"""What gather_qmv's Metal kernels read and do, to the byte."""

import sys

import pytest
import torch

from cases.gather_qmv import Case
from simulator import mps

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is the simulated device that counts")

DECODE_OUTPUTS, TILE_PAIRS, TILE_OUTPUTS = 4, 32, 64  # of csrc/mps/kernels/gather_qmv_params.h
X, W = 0, 1  # buffers of both kernels that multiply
BITS = [2, 3, 4, 5, 6, 8]


def recorded(case):
    """The indices of a call, the bytes of an expert's weights, and the launches."""
    call = case.call().copy("mps")
    with mps.record() as launches:
        call.run()
    weights = call.args[1]
    return call.args[4].cpu(), weights[0].numel(), launches


@pytest.mark.parametrize("bits", BITS)
def test_decode_reads_the_weights_once_a_row(bits):
    case = Case(E=4, N=10, K=1088, bits=bits, rows=(3,), top_k=2, experts="some", dtype=torch.float16)
    indices, expert_bytes, (launch,) = recorded(case)
    used = indices[indices >= 0]
    assert len(used) < indices.numel()  # those without an expert read nothing
    x, w = launch.run.cost.buffers[X], launch.run.cost.buffers[W]
    assert w.read_bytes == len(used) * expert_bytes
    assert w.distinct_read_bytes == len(used.unique()) * expert_bytes
    # x is read, and converted, once for four rows of weights
    assert x.read_bytes == len(used) * -(-case.N // DECODE_OUTPUTS) * case.K * 2
    assert launch.run.cost.simd_operations == len(used) * case.N  # one sum an output
    assert launch.run.cost.threadgroup_barriers == 0


@pytest.mark.parametrize("bits", [4, 8])
def test_decode_loads_16_bytes_at_a_time(bits):
    _, _, (launch,) = recorded(Case(N=8, K=1024, bits=bits, rows=(2,)))
    w = launch.run.cost.buffers[W]
    assert w.reads == w.read_bytes / 16


@pytest.mark.parametrize("bits", BITS)
def test_grouped_reads_the_weights_once_a_tile(bits):
    case = Case(E=2, N=70, K=160, bits=bits, rows=(70,), top_k=2, experts="some", dtype=torch.bfloat16)
    indices, expert_bytes, launches = recorded(case)
    experts, rows = indices[indices >= 0].unique(return_counts=True)
    tiles = [min(TILE_PAIRS, count - done) for count in rows.tolist() for done in range(0, count, TILE_PAIRS)]
    assert len(tiles) > len(experts)
    cost = launches[-1].run.cost
    x, w = cost.buffers[X], cost.buffers[W]
    assert w.read_bytes == len(tiles) * expert_bytes
    assert w.distinct_read_bytes == len(experts) * expert_bytes
    across = -(-case.N // TILE_OUTPUTS)  # threadgroups a tile
    assert x.read_bytes == sum(tiles) * across * case.K * 2
    # eight by eight by eight; blocks of pairs that a tile does not have cost nothing
    blocks = sum(-(-pairs // 8) for pairs in tiles)
    assert cost.matrix_operations == blocks * across * (TILE_OUTPUTS // 8) * (case.K // 8)


def test_grouping_reads_each_index_twice():
    indices, _, launches = recorded(Case(E=3, rows=(300,)))
    clear, count, start, sort, _ = (launch.run.cost for launch in launches)
    assert clear.buffers[0].written_bytes == 4 * (3 + 3)
    assert count.buffers[0].read_bytes == sort.buffers[0].read_bytes == indices.numel() * indices.element_size()
    assert count.atomics == indices.numel()
    assert start.threadgroup_barriers == 2
