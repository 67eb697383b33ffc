"""What sdpa's decode kernels read and reduce, to the byte and the operation."""

import sys
from math import log2

import pytest
import torch

from cases.sdpa import Case, _wide_rows
from simulator import mps

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is the simulated device that counts")

QUERY, KEY, VALUE, OUT, MASK = range(5)  # buffers
# Head sizes, and as csrc/mps/kernels/sdpa_decode.metal has them: the lanes that share a key, and the most rows.
KERNELS = [
    (64, 64, 8, 4),
    (80, 80, 8, 4),
    (96, 96, 8, 4),
    (112, 112, 16, 4),
    (128, 128, 16, 4),
    (192, 192, 16, 4),
    (192, 128, 16, 4),
    (256, 256, 32, 4),
    (576, 512, 32, 2),
]


def divide_up(a, b):
    return -(-a // b)


def part_of(keys, splits):
    """The keys of a split, for heads of 64: the four simdgroups take 4 keys each a step."""
    return 16 * divide_up(divide_up(keys, splits), 16)


def launches(case, kernel="sdpa_decode_"):
    call = case.call().copy("mps")
    with mps.record() as recorded:
        call.run()
    assert recorded[0].kernel.startswith(kernel)
    return recorded


def cost(case, kernel="sdpa_decode_"):
    return launches(case, kernel)[0].run.cost


def check_read_once(count, keys, Dk, Dv, size):
    """`keys`: over all batches and key heads."""
    for buffer, D in ((KEY, Dk), (VALUE, Dv)):
        traffic = count.buffers[buffer]
        assert traffic.read_bytes == traffic.distinct_read_bytes == keys * D * size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("Dk, Dv, lanes, rows", KERNELS)
def test_keys_and_values_are_read_once_a_group(Dk, Dv, lanes, rows, dtype):
    """For all query heads and queries of a key head together; what reductions that takes."""
    Lq, Lk = 2, 75
    group = rows // Lq
    case = Case(Hq=2 * group, Hkv=2, Lq=Lq, Lk=Lk, Dk=Dk, Dv=Dv, dtype=dtype)
    count = cost(case, f"sdpa_decode_{'f32' if dtype == torch.float32 else 'bf16'}_dk{Dk}_dv{Dv}")
    check_read_once(count, 2 * Lk, Dk, Dv, dtype.itemsize)
    assert count.buffers[OUT].written_bytes == 2 * rows * Dv * dtype.itemsize
    # A step of a simdgroup takes as many keys as it has groups of lanes: a sum over the lanes for each row, and a
    # question whether a score has grown too large. At the end the groups of lanes of four simdgroups are merged.
    streams = 32 // lanes
    run = 8 if dtype.itemsize == 2 and Dv % (8 * lanes) == 0 else 4
    share = divide_up(Dv, run * lanes) * run
    steps = divide_up(Lk, streams)
    assert count.simd_operations == 2 * (steps * (rows * log2(lanes) + 1) + 4 * rows * log2(streams) * (2 + share))
    assert count.threadgroup_barriers == 2 * 2 * rows
    assert count.matrix_operations == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("Dk, Dv, group", [(40, 36, 4), (7, 5, 3), (320, 264, 2)])
def test_other_head_sizes_too(Dk, Dv, group, dtype):
    count = cost(Case(Hq=2 * group, Hkv=2, Lq=1, Lk=75, Dk=Dk, Dv=Dv, dtype=dtype), "sdpa_decode_any_")
    check_read_once(count, 2 * 75, Dk, Dv, dtype.itemsize)


def test_rows_that_are_not_aligned_too():
    case = Case(Hq=4, Hkv=1, Lq=1, Lk=75, Dk=64, dtype=torch.float16, layout=_wide_rows)
    check_read_once(cost(case, "sdpa_decode_any_"), 75, 64, 64, 2)


def test_a_load_has_16_bytes_where_they_fit():
    """A row of 128 elements of 2 bytes is 16 loads, one a lane."""
    count = cost(Case(Hq=4, Hkv=1, Lq=1, Lk=60, Dk=128, dtype=torch.bfloat16))
    assert count.buffers[KEY].reads == count.buffers[VALUE].reads == 60 * 16


def test_no_key_beyond_those_in_use_is_read():
    """The splits divide what is in use, not what there is room for."""
    used = (700, 33, 0)
    case = Case(B=3, Hq=4, Hkv=1, Lq=1, Lk=2000, Dk=64, dtype=torch.float16, seqused=used, causal=True)
    count = cost(case)
    check_read_once(count, sum(used), 64, 64, 2)
    first = launches(case)[0]
    splits = first.threads[0] // first.group[0]
    assert splits > 1
    parts = [divide_up(n, part_of(n, splits)) for n in used if n]
    assert parts[0] > splits / 2 and parts[1] > 1
    # Only a split that has keys reads the queries: 16 bytes a lane, in every group of lanes.
    assert count.buffers[QUERY].read_bytes == sum(parts) * 128 // 8 * 4 * 64 * 2


@pytest.mark.parametrize("Lq, window", [(1, 50), (3, 50), (1, 1)])
def test_no_key_outside_the_window_is_read(Lq, window):
    used = (600, 33)
    case = Case(B=2, Hq=1, Hkv=1, Lq=Lq, Lk=800, Dk=64, dtype=torch.bfloat16, seqused=used, causal=True, window=window)
    check_read_once(cost(case), sum(min(n, window + Lq - 1) for n in used), 64, 64, 2)


def test_no_key_that_causal_hides_is_read():
    check_read_once(cost(Case(Hq=2, Hkv=2, Lq=3, Lk=300, Dk=80, causal=True)), 2 * 3, 80, 80, 4)


def test_no_key_that_a_mask_hides_from_all_is_read():
    visible = torch.stack([torch.arange(90) % 3 == 0, torch.arange(90) % 5 == 0])
    count = cost(Case(Hq=2, Hkv=2, Lq=2, Lk=90, Dk=64, dtype=torch.float16, mask=lambda: visible))
    check_read_once(count, 2 * int(visible.any(0).sum()), 64, 64, 2)


def test_partial_results_are_written_and_read_once():
    first, reduce = launches(Case(B=2, Hq=4, Hkv=1, Lq=1, Lk=1100, Dk=64, dtype=torch.bfloat16))
    splits = first.threads[0] // first.group[0]
    assert splits > 1 and reduce.kernel == "sdpa_decode_reduce_bf16"
    references, weighted = 8, 9
    parts = divide_up(1100, part_of(1100, splits))  # those with keys
    bytes_of_sums = 2 * 4 * parts * 64 * 4
    assert first.run.cost.buffers[weighted].written_bytes == bytes_of_sums
    assert first.run.cost.buffers[references].written_bytes == 2 * 4 * splits * 8
    assert OUT not in first.run.cost.buffers or first.run.cost.buffers[OUT].written_bytes == 0
    traffic = reduce.run.cost.buffers[1]
    assert traffic.read_bytes == traffic.distinct_read_bytes == bytes_of_sums
    assert reduce.run.cost.buffers[3].written_bytes == 2 * 4 * 64 * 2
