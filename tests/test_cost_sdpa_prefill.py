"""What sdpa's prefill kernels read and multiply, to the byte."""

import sys

import pytest
import torch

from cases.sdpa import Case
from simulator import mps

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is the simulated device that counts")

QUERY, KEY, VALUE, OUT, MASK = range(5)  # buffers
# Head sizes, and as csrc/mps/kernels/sdpa_prefill.metal has them: rows of a tile, also for float32, and simdgroups.
KERNELS = [
    (64, 64, 32, 32, 4),
    (80, 80, 32, 32, 5),
    (96, 96, 32, 32, 6),
    (112, 112, 32, 32, 7),
    (128, 128, 32, 32, 8),
    (192, 128, 32, 16, 8),
    (192, 192, 32, 16, 6),
    (256, 256, 32, 16, 8),
    (576, 512, 16, 8, 8),
]


def cost(case):
    call = case.call().copy("mps")
    with mps.record() as launches:
        call.run()
    assert launches[0].library == "sdpa_prefill"
    return launches[0].run.cost


def tiles(rows, tile):
    """The first and the last row of each tile."""
    return [(first, min(first + tile, rows) - 1) for first in range(0, rows, tile)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("Dk, Dv, rows, rows_f32, simdgroups", KERNELS)
def test_keys_and_values_are_read_once_a_tile(Dk, Dv, rows, rows_f32, simdgroups, dtype):
    """By a tile of the rows of all query heads of a key head."""
    tile = rows_f32 if dtype == torch.float32 else rows
    group, Lq, Lk, size = 2, tile // 2 + 2, 75, dtype.itemsize
    count = cost(Case(Hq=2 * group, Hkv=2, Lq=Lq, Lk=Lk, Dk=Dk, Dv=Dv, dtype=dtype))
    passes = len(tiles(Lq * group, tile))
    for buffer, D in ((KEY, Dk), (VALUE, Dv)):
        traffic = count.buffers[buffer]
        assert traffic.distinct_read_bytes == 2 * Lk * D * size
        assert traffic.read_bytes == passes * traffic.distinct_read_bytes
    assert count.buffers[QUERY].read_bytes == 2 * group * Lq * Dk * size
    assert count.buffers[OUT].written_bytes == 2 * group * Lq * Dv * size
    # Products of 8x8 matrices: blocks of rows, of keys and of columns.
    blocks = sum(-(-(last - first + 1) // 8) for first, last in tiles(Lq * group, tile))
    assert count.matrix_operations == 2 * blocks * -(-Lk // 8) * (Dk + Dv) // 8
    # Two a step of 8 keys a simdgroup; two at either end.
    steps = -(-Lk // (8 * simdgroups))
    assert count.threadgroup_barriers == 2 * passes * (2 * steps + 4)


@pytest.mark.parametrize("window", [None, 21])
def test_what_causal_hides_is_neither_read_nor_multiplied(window):
    """A tile reads the keys that some row of it sees, and multiplies 8 keys together at least."""
    group, L, D, tile = 2, 150, 64, 32
    count = cost(Case(Hq=group, Hkv=1, Lq=L, Lk=L, Dk=D, dtype=torch.float16, causal=True, window=window))
    seen, products = 0, 0
    for first, last in tiles(L * group, tile):
        begin = max(0, first // group - window + 1) if window else 0
        keys = last // group + 1 - begin
        seen += keys
        products += -(-keys // 8) * -(-(last - first + 1) // 8)
    assert count.buffers[KEY].read_bytes == count.buffers[VALUE].read_bytes == seen * D * 2
    assert count.matrix_operations == products * 2 * D // 8
    if window is None:  # about half of what all see
        assert seen < 0.6 * L * len(tiles(L * group, tile))


def test_no_key_beyond_those_in_use_is_read():
    used = (70, 9, 0)
    count = cost(Case(B=3, Hq=2, Hkv=2, Lq=20, Lk=200, Dk=80, dtype=torch.bfloat16, seqused=used))
    for buffer in (KEY, VALUE):
        assert count.buffers[buffer].read_bytes == count.buffers[buffer].distinct_read_bytes == 2 * sum(used) * 80 * 2


def test_keys_that_a_mask_hides_from_all_are_not_read():
    """Where whole blocks of 8 keys are hidden; of a single key its values are not."""
    visible = torch.arange(96) // 24 % 2 == 0
    visible[3] = False
    count = cost(Case(Lq=20, Lk=96, Dk=64, dtype=torch.float16, mask=lambda: visible))
    assert count.buffers[KEY].read_bytes == 2 * 48 * 64 * 2
    assert count.buffers[VALUE].read_bytes == 2 * 47 * 64 * 2
    assert count.matrix_operations == 2 * 3 * 6 * 2 * 64 // 8
    assert count.buffers[MASK].read_bytes == 2 * 24 * 96  # rows up to a whole block repeat the last


def test_splits_read_the_same_keys():
    """Few rows and many keys: the threadgroups divide the keys."""
    case = Case(Hq=8, Hkv=1, Lq=1, Lk=1100, Dk=128, dtype=torch.bfloat16)
    call = case.call().copy("mps")
    with mps.record() as launches:
        call.run()
    assert [launch.kernel for launch in launches] == ["sdpa_prefill_bf16_dk128_dv128", "sdpa_decode_reduce_bf16"]
    first = launches[0]
    assert first.threads[0] // first.group[0] == 4
    for buffer in (KEY, VALUE):
        assert first.run.cost.buffers[buffer].read_bytes == 1100 * 128 * 2
