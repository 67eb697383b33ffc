"""Simd and quad functions, matrices and atomics, against values worked out by hand."""

import pytest
import torch

from simulator import msl

PREAMBLE = "#include <metal_stdlib>\nusing namespace metal;\n"
LANES = list(range(32))


def each_lane(expression: str, lanes: int = 32) -> list[int]:
    """The value of an expression of `lane` and `x` (10 * lane) in every lane of one simdgroup."""
    source = f"""{PREAMBLE}
    kernel void f(device int* out, uint lane [[thread_index_in_simdgroup]]) {{
      int x = int(lane) * 10;
      out[lane] = {expression};
    }}"""
    out = torch.full((lanes,), -1, dtype=torch.int32)
    msl.compile(source).kernel("f").run({0: out}, threads=(lanes, 1, 1), group=(lanes, 1, 1))
    return out.tolist()


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("simd_sum(x)", [4960] * 32),
        ("simd_product(lane < 3 ? int(lane) + 2 : 1)", [24] * 32),
        ("simd_max(-x)", [0] * 32),
        ("simd_min(x + 1)", [1] * 32),
        ("simd_or(1u << lane) == ~0u", [1] * 32),
        ("simd_xor(lane)", [0] * 32),
        ("simd_and(x | 1)", [1] * 32),
        ("simd_shuffle(x, ushort(31 - lane))", [310 - 10 * i for i in LANES]),
        ("simd_shuffle_xor(x, 5)", [10 * (i ^ 5) for i in LANES]),
        ("simd_shuffle_up(x, 3)", [10 * max(i - 3, 0) if i >= 3 else 10 * i for i in LANES]),
        ("simd_shuffle_down(x, 3)", [10 * (i + 3) if i < 29 else 10 * i for i in LANES]),
        ("simd_shuffle_rotate_up(x, 3)", [10 * ((i - 3) % 32) for i in LANES]),
        ("simd_shuffle_rotate_down(x, 3)", [10 * ((i + 3) % 32) for i in LANES]),
        ("simd_shuffle_and_fill_down(x, -x, 2)", [10 * (i + 2) if i < 30 else -10 * (i - 30) for i in LANES]),
        ("simd_shuffle_and_fill_up(x, -x, 2)", [10 * (i - 2) if i >= 2 else -10 * (30 + i) for i in LANES]),
        ("simd_broadcast(x, 7)", [70] * 32),
        ("simd_broadcast_first(x + 5)", [5] * 32),
        ("simd_prefix_exclusive_sum(x)", [5 * i * (i - 1) for i in LANES]),
        ("simd_prefix_inclusive_sum(x)", [5 * i * (i + 1) for i in LANES]),
        ("simd_all(lane < 32)", [1] * 32),
        ("simd_any(lane == 40)", [0] * 32),
        ("int(ulong(simd_ballot(lane < 4)))", [15] * 32),
        ("simd_is_first()", [1] + [0] * 31),
        ("quad_sum(x)", [10 * (4 * (i // 4 * 4) + 6) for i in LANES]),
        ("quad_shuffle_xor(x, 1)", [10 * (i ^ 1) for i in LANES]),
        ("quad_broadcast(x, 2)", [10 * (i // 4 * 4 + 2) for i in LANES]),
        ("quad_shuffle_down(x, 1)", [10 * (i + 1) if i % 4 < 3 else 10 * i for i in LANES]),
        ("quad_max(x)", [10 * (i // 4 * 4 + 3) for i in LANES]),
    ],
)
def test_functions(expression, expected):
    assert each_lane(expression) == expected


def test_a_partial_simdgroup_reduces_what_it_has():
    assert each_lane("simd_sum(x)", lanes=5) == [100] * 5
    assert each_lane("int(ulong(simd_ballot(true)))", lanes=5) == [31] * 5


def test_vectors_are_exchanged_whole():
    assert each_lane("simd_shuffle_xor(float4(x, x + 1, x + 2, x + 3), 1).w") == [10 * (i ^ 1) + 3 for i in LANES]
    assert each_lane("simd_sum(float2(x, 1)).y") == [32] * 32


def test_lanes_that_do_not_take_part_are_left_out():
    source = f"""{PREAMBLE}
    kernel void f(device int* out, uint lane [[thread_index_in_simdgroup]]) {{
      int s = 0;
      for (uint i = 0; i < lane % 3; i++) s += simd_sum(1);
      if (lane < 8) s += 1000 * simd_sum(1);
      out[lane] = s;
    }}"""
    out = torch.zeros(32, dtype=torch.int32)
    msl.compile(source).kernel("f").run({0: out}, threads=(32, 1, 1), group=(32, 1, 1))
    # The first turn of the loop has the 21 lanes of remainder 1 and 2, the second the 10 of remainder 2.
    assert out.tolist() == [[0, 21, 31][i % 3] + (8000 if i < 8 else 0) for i in LANES]


@pytest.mark.parametrize("name, dtype", [("float", torch.float32), ("half", torch.half), ("bfloat", torch.bfloat16)])
def test_matrices(name, dtype):
    source = f"""{PREAMBLE}
    kernel void f(device const {name}* a, device const {name}* b, device float* out) {{
      simdgroup_matrix<{name}, 8, 8> A, B;
      simdgroup_float8x8 C = simdgroup_float8x8(2.0f), D;
      simdgroup_load(A, a, 16, ulong2(8, 1));
      simdgroup_load(B, b, 8, 0, true);
      simdgroup_multiply_accumulate(D, A, B, C);
      simdgroup_store(D, out, 8);
    }}"""
    a, b = torch.randint(-4, 5, (9, 16)).to(dtype), torch.randint(-4, 5, (8, 8)).to(dtype)
    out = torch.zeros(8, 8)
    run = msl.compile(source).kernel("f").run({0: a, 1: b, 2: out}, threads=(32, 1, 1), group=(32, 1, 1))
    assert torch.equal(out, a[1:, 8:].float() @ b.T.float() + 2 * torch.eye(8))
    assert run.cost.matrix_operations == 1


def test_elements_of_a_matrix_in_a_lane():
    source = f"""{PREAMBLE}
    kernel void f(device float* out, uint lane [[thread_index_in_simdgroup]]) {{
      simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      m.thread_elements()[1] = lane;
      simdgroup_store(m, out, 8);
    }}"""
    out = torch.zeros(8, 8)
    msl.compile(source).kernel("f").run({0: out}, threads=(32, 1, 1), group=(32, 1, 1))
    # Lane l has row (l / 4 & 4) + l / 2 % 4 and columns (l / 4 & 2) * 2 + l % 2 * 2 and the next.
    assert out[0].tolist() == [0, 0, 0, 1, 0, 8, 0, 9]
    assert out[7].tolist() == [0, 22, 0, 23, 0, 30, 0, 31]


def test_atomics():
    source = f"""{PREAMBLE}
    kernel void f(device atomic_int* i, device atomic<float>* x, device atomic_uint* u, uint t [[thread_position_in_grid]]) {{
      threadgroup atomic_uint local;
      if (t % 64 == 0) atomic_store_explicit(&local, 0u, memory_order_relaxed);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      atomic_fetch_add_explicit(&local, 1u, memory_order_relaxed);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (t % 64 == 0) atomic_fetch_add_explicit(&u[0], atomic_load_explicit(&local, memory_order_relaxed), memory_order_relaxed);
      atomic_fetch_sub_explicit(&i[0], 2, memory_order_relaxed);
      atomic_fetch_max_explicit(&i[1], int(t), memory_order_relaxed);
      atomic_fetch_or_explicit(&u[1], 1u << (t % 32), memory_order_relaxed);
      atomic_fetch_add_explicit(&x[0], 0.5f, memory_order_relaxed);
      uint expected = atomic_load_explicit(&u[2], memory_order_relaxed);
      while (!atomic_compare_exchange_weak_explicit(&u[2], &expected, expected * 2 % 1009, memory_order_relaxed,
                                                    memory_order_relaxed)) {{}}
    }}"""
    i = torch.zeros(2, dtype=torch.int32)
    x = torch.zeros(1)
    u = torch.tensor([0, 0, 1], dtype=torch.int32)
    run = msl.compile(source).kernel("f").run({0: i, 1: x, 2: u}, threads=(128, 1, 1), group=(64, 1, 1))
    assert i.tolist() == [-256, 127]
    assert x.item() == 64
    assert u.tolist() == [128, -1, pow(2, 128, 1009)]
    assert run.findings == ()
