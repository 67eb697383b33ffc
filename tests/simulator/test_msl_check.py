"""Check mode: planted faults are found where they are, clean kernels have none, and costs are exact."""

import struct
from dataclasses import dataclass

import pytest
import torch

from simulator import msl
from simulator.msl.abi import Fault

PREAMBLE = "#include <metal_stdlib>\nusing namespace metal;\n"


@dataclass
class Clean:
    """A kernel without faults, with a launch that shows it."""

    source: str
    expected: object  # of the arguments, what the output must be
    output: int
    launch: dict

    def arguments(self) -> dict:
        torch.manual_seed(0)
        make = {"x": lambda: torch.arange(192.0), "m": lambda: torch.randint(-3, 4, (16, 16)).float()}
        make |= {"out": lambda: torch.full((192,), torch.nan), "n": lambda: struct.pack("I", 190)}
        make |= {"tile": lambda: torch.full((16, 16), torch.nan), "bins": lambda: torch.zeros(8, dtype=torch.int32)}
        return {i: make[name]() for i, name in self.launch["arguments"].items()}

    def run(self, source: str, **kwargs) -> tuple[msl.Run, dict]:
        arguments = self.arguments()
        launch = {key: value for key, value in self.launch.items() if key != "arguments"}
        kernel = msl.compile(PREAMBLE + source, check=True).kernel("k")
        return kernel.run(arguments, uninitialised=[self.output], **launch, **kwargs), arguments


ROWS = Clean(
    """
    kernel void k(device const float* x [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  threadgroup float* sums [[threadgroup(0)]], uint i [[thread_position_in_grid]],
                  uint t [[thread_position_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                  uint sg [[simdgroup_index_in_threadgroup]]) {
      threadgroup float tile[96];
      float value = 0;
      if (i < n) value = x[i];
      tile[t] = value;
      float sum = simd_sum(value);
      if (lane == 0) sums[sg] = sum;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      float other = tile[95 - t];
      float total = sums[0] + sums[1] + sums[2];
      threadgroup_barrier(mem_flags::mem_threadgroup);
      tile[t] = other;
      simdgroup_barrier(mem_flags::mem_threadgroup);
      float neighbour = tile[t ^ 1];
      float shuffled = simd_shuffle_xor(value, 1);
      out[i] = total + neighbour + shuffled;
    }""",
    lambda a: sum_of_rows(a[0]),
    1,
    dict(arguments={0: "x", 1: "out", 2: "n"}, threads=(192, 1, 1), group=(96, 1, 1), threadgroup_memory={0: 12}),
)


def sum_of_rows(x):
    x = x.clone()
    x[190:] = 0
    halves = x.view(2, 96)
    pairs = halves.view(2, 48, 2).flip(-1).reshape(2, 96)
    neighbour = halves.flip(-1).view(2, 48, 2).flip(-1).reshape(2, 96)
    return (halves.sum(-1, keepdim=True) + neighbour + pairs).flatten()


MATRIX = Clean(
    """
    kernel void k(device const float* a [[buffer(0)]], device const float4* b [[buffer(1)]], device float* out [[buffer(2)]],
                  uint2 g [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
      threadgroup float left[64], right[64];
      simdgroup_float8x8 A, B, C = simdgroup_float8x8(0.0f);
      for (uint k = 0; k < 2; k++) {
        for (uint i = lane; i < 64; i += 32) left[i] = a[(g.y * 8 + i / 8) * 16 + k * 8 + i % 8];
        if (lane < 16) *(threadgroup float4*)(right + lane * 4) = b[(k * 8 + lane / 2) * 4 + g.x * 2 + lane % 2];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_load(A, left, 8);
        simdgroup_load(B, right, 8);
        simdgroup_multiply_accumulate(C, A, B, C);
        simdgroup_barrier(mem_flags::mem_threadgroup);
      }
      simdgroup_store(C, out + g.y * 128 + g.x * 8, 16);
    }""",
    lambda a: a[0] @ a[1],
    2,
    dict(arguments={0: "m", 1: "m", 2: "tile"}, groups=(2, 2, 1), group=(32, 1, 1)),
)

HISTOGRAM = Clean(
    """
    kernel void k(device const float* x [[buffer(0)]], device atomic_int* bins [[buffer(1)]],
                  uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
      threadgroup atomic_int local[8];
      if (t < 8) atomic_store_explicit(&local[t], 0, memory_order_relaxed);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      atomic_fetch_add_explicit(&local[uint(x[i]) % 8], 1, memory_order_relaxed);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (t < 8) {
        int count = atomic_load_explicit(&local[t], memory_order_relaxed);
        atomic_fetch_add_explicit(&bins[t], count, memory_order_relaxed);
      }
    }""",
    lambda a: torch.full((8,), 24, dtype=torch.int32),
    9,
    dict(arguments={0: "x", 1: "bins"}, threads=(192, 1, 1), group=(64, 1, 1)),
)

CLEAN = {"rows": ROWS, "matrix": MATRIX, "histogram": HISTOGRAM}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_kernel_has_no_finding(name, seed):
    case = CLEAN[name]
    run, arguments = case.run(case.source, seed=seed)
    assert not run.findings, "\n".join(map(str, run.findings))
    assert not run.warnings
    output = arguments.get(case.output, arguments.get(1))
    assert torch.equal(output, case.expected(arguments))


READ, WRITE = Fault.OUT_OF_BOUNDS_READ, Fault.OUT_OF_BOUNDS_WRITE
UNINITIALISED, RACE, MISALIGNED = Fault.UNINITIALISED_READ, Fault.RACE, Fault.MISALIGNED
BARRIER, EARLY, LIMIT = Fault.BARRIER_DIVERGENCE, Fault.EARLY_RETURN, Fault.THREADGROUP_MEMORY
INACTIVE, SIMD = Fault.INACTIVE_LANE, Fault.SIMD_DIVERGENCE
FIRST_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n      float other"
SECOND_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n      tile[t]"
SIMD_BARRIER = "simdgroup_barrier(mem_flags::mem_threadgroup);\n      float neighbour"
LOADED = "simdgroup_barrier(mem_flags::mem_threadgroup);\n        simdgroup_load"
USED = "simdgroup_barrier(mem_flags::mem_threadgroup);\n      }"

# kernel, what is replaced, by what, the fault, and a piece of the line that it is reported on
FAULTS = [
    ("rows", "value = x[i]", "value = x[i + 3]", READ, "x[i + 3]"),
    ("rows", "value = x[i]", "value = x[int(i) - 1]", READ, "x[int(i) - 1]"),
    ("rows", "value = x[i]", "value = x[i * 100000u]", READ, "x[i * 100000u]"),
    ("rows", "i < n", "i < (&n)[1]", READ, "(&n)[1]"),
    ("rows", "out[i] =", "out[i + 1] =", WRITE, "out[i + 1]"),
    ("rows", "out[i] =", "out[i - 5] =", WRITE, "out[i - 5]"),
    ("rows", "tile[t] = value", "tile[t + 1] = value", WRITE, "tile[t + 1] = value"),
    ("rows", "tile[95 - t]", "tile[96 - t]", READ, "tile[96 - t]"),
    ("rows", "sums[2];", "sums[3];", READ, "sums[3]"),
    ("rows", "if (lane == 0) sums[sg]", "if (lane == 0) sums[sg + 1]", WRITE, "sums[sg + 1]"),
    ("rows", "if (i < n) value = x[i];\n      tile[t] = value;", "if (i < n) { value = x[i]; tile[t] = value; }", UNINITIALISED, "float other"),
    ("rows", "if (lane == 0) sums[sg] = sum;", "if (lane == 0 && sg < 2) sums[sg] = sum;", UNINITIALISED, "float total"),
    ("rows", "out[i] = total", "out[i] += total", UNINITIALISED, "out[i] += total"),
    ("rows", "tile[t] = value;", "tile[t] += value;", UNINITIALISED, "tile[t] += value"),
    ("rows", FIRST_BARRIER, "float other", RACE, "float other"),
    ("rows", FIRST_BARRIER, "simdgroup_barrier(mem_flags::mem_threadgroup);\n      float other", RACE, "float other"),
    ("rows", FIRST_BARRIER, "threadgroup_barrier(mem_flags::mem_device);\n      float other", RACE, "float other"),
    ("rows", FIRST_BARRIER, "threadgroup_barrier(mem_flags::mem_none);\n      float other", RACE, "float other"),
    ("rows", SECOND_BARRIER, "tile[t]", RACE, "tile[t] = other"),
    ("rows", SIMD_BARRIER, "float neighbour", RACE, "float neighbour"),
    ("rows", SIMD_BARRIER, "simdgroup_barrier(mem_flags::mem_none);\n      float neighbour", RACE, "float neighbour"),
    ("rows", "out[i] = total", "out[i % 96] = total", RACE, "out[i % 96]"),
    ("rows", "out[i] = total", "out[i / 2] = total", RACE, "out[i / 2]"),
    ("rows", "tile[t ^ 1]", "tile[t ^ 32]", RACE, "tile[t ^ 32]"),
    ("rows", FIRST_BARRIER, "if (t != 5) " + FIRST_BARRIER, BARRIER, "if (t != 5)"),
    ("rows", FIRST_BARRIER, "if (sg == 1) " + FIRST_BARRIER, BARRIER, "threadgroup_barrier"),
    ("rows", SIMD_BARRIER, "if (lane < 7) " + SIMD_BARRIER, BARRIER, "if (lane < 7)"),
    ("rows", "float value = 0;", "float value = 0; if (i >= n) return;", EARLY, "threadgroup_barrier"),
    ("rows", "float other", "if (sg == 2) return;\n      float other", EARLY, "threadgroup_barrier"),
    ("rows", "float shuffled =", "float shuffled = 0; if (lane != 3) shuffled =", INACTIVE, "simd_shuffle_xor"),
    ("rows", "tile[96]", "tile[8200]", LIMIT, "tile[8200]"),
    ("matrix", "= b[(k", "= *(device float4*)((device float*)b + 1 + 0 * k); b[(k", MISALIGNED, "float*)b + 1"),
    ("matrix", "(right + lane * 4)", "(right + lane * 4 - lane % 2)", MISALIGNED, "right + lane"),
    ("matrix", LOADED, "simdgroup_load", RACE, "simdgroup_load(A"),
    ("matrix", USED, "}", RACE, "left[i] ="),
    ("matrix", "if (lane < 16)", "if (lane < 15)", UNINITIALISED, "simdgroup_load(B"),
    ("matrix", "simdgroup_load(A, left, 8)", "simdgroup_load(A, left, 9)", READ, "simdgroup_load(A"),
    ("matrix", "simdgroup_load(B, right, 8)", "simdgroup_load(B, right, 8, ulong2(0, 1))", READ, "simdgroup_load(B"),
    ("matrix", "g.x * 8, 16)", "g.x * 8, 18)", WRITE, "simdgroup_store"),
    ("matrix", "g.x * 8, 16)", "g.x * 8, 15)", RACE, "simdgroup_store"),
    ("matrix", "simdgroup_multiply_accumulate", "if (lane < 24) simdgroup_multiply_accumulate", SIMD, "if (lane < 24)"),
    ("matrix", "simdgroup_barrier(mem_flags::mem_threadgroup);\n        simdgroup_load", "threadgroup_barrier(mem_flags::mem_device);\n        simdgroup_load", RACE, "simdgroup_load(A"),
    ("histogram", "if (t < 8) atomic_store", "if (t < 7) atomic_store", UNINITIALISED, "atomic_fetch_add_explicit(&local"),
    ("histogram", "% 8]", "% 9]", READ, "% 9]"),
    ("histogram", "atomic_fetch_add_explicit(&bins[t]", "atomic_fetch_add_explicit(&bins[t + 1]", READ, "bins[t + 1]"),
    ("histogram", "atomic_load_explicit(&local[t], memory_order_relaxed)", "((threadgroup int*)local)[(t + 1) % 9]", READ, "% 9]"),
    ("histogram", "atomic_fetch_add_explicit(&bins[t], count, memory_order_relaxed)", "((device int*)bins)[t] += count", RACE, "bins)[t] += count"),
    ("histogram", "memory_order_relaxed);\n      threadgroup_barrier(mem_flags::mem_threadgroup);\n      if", "memory_order_relaxed);\n      ((threadgroup int*)local)[t % 8]++;\n      if", RACE, "[t % 8]++"),
]  # fmt: skip


@pytest.mark.parametrize("row", range(len(FAULTS)), ids=lambda row: f"{FAULTS[row][0]}-{FAULTS[row][3].name}-{row}")
def test_planted_faults_are_found(row):
    name, old, new, fault, snippet = FAULTS[row]
    case = CLEAN[name]
    assert case.source.count(old) == 1, "the row must change one place"
    source = case.source.replace(old, new)
    run, _ = case.run(source)
    lines = [i for i, text in enumerate((PREAMBLE + source).splitlines(), 1) if snippet in text]
    for finding in run.findings:
        assert finding.kernel == "k"
        assert all(0 <= t < n for t, n in zip(finding.thread, (192, 2, 1), strict=True))
    found = [(f.fault, f.line) for f in run.findings]
    assert any(f == fault and line in lines for f, line in found), (
        f"expected {fault} on line {lines}, found:\n" + "\n".join(map(str, run.findings))
    )


def test_more_threadgroup_memory_than_there_is():
    source = "kernel void k(threadgroup int* t [[threadgroup(0)]]) {}\n"
    kernel = msl.compile(PREAMBLE + source).kernel("k")
    assert not kernel.run({}, threads=(1, 1, 1), group=(1, 1, 1), threadgroup_memory={0: 32768}).findings
    (finding,) = kernel.run({}, threads=(1, 1, 1), group=(1, 1, 1), threadgroup_memory={0: 32769}).findings
    assert finding.fault is LIMIT
    # Even what the simulator itself has no room for ends in a finding.
    source = "kernel void k(device int* out) {\n  threadgroup int t[9000000];\n  t[0] = 1;\n  *out = t[0];\n}\n"
    run = msl.compile(PREAMBLE + source).kernel("k").run({0: bytes(4)}, threads=(1, 1, 1), group=(1, 1, 1))
    assert [(f.fault, f.line) for f in run.findings] == [(LIMIT, 4)]


def test_a_finding_says_where_and_who():
    source = ROWS.source.replace("out[i] =", "out[i + 2] =")
    run, arguments = ROWS.run(source)
    (finding,) = run.findings
    assert str(finding).endswith(
        ": out-of-bounds write in k, thread (190, 0, 0): 4 bytes at offset 768 of buffer 1, which has 768"
    )
    assert arguments[1][5].isfinite()  # what was written before the fault is there


def test_a_simd_function_without_all_lanes_is_a_warning():
    run, _ = ROWS.run(ROWS.source.replace("float sum = ", "float sum = 0; if (lane < 30) sum = "))
    assert not run.findings
    assert [(w.fault, w.thread) for w in run.warnings] == [(Fault.SIMD_DIVERGENCE, (30, 0, 0))]
    assert "simd_sum" in str(run.warnings[0])


def test_divergence_is_seen_without_check_mode():
    source = PREAMBLE + ROWS.source.replace(FIRST_BARRIER, "if (t != 5) " + FIRST_BARRIER)
    launch = {key: value for key, value in ROWS.launch.items() if key != "arguments"}
    run = msl.compile(source).kernel("k").run(ROWS.arguments(), **launch)
    assert Fault.BARRIER_DIVERGENCE in {f.fault for f in run.findings}


def test_overlapping_buffers_are_one_memory():
    source = """
    kernel void k(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
      out[i] = in[i] + 1;
    }"""
    kernel = msl.compile(PREAMBLE + source, check=True).kernel("k")
    x = torch.arange(9.0)
    clean = kernel.run({0: x[:4], 1: x[4:8]}, threads=(4, 1, 1), group=(4, 1, 1))
    assert not clean.findings
    assert x.tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 8]
    shifted = kernel.run({0: x[:8], 1: x[1:9]}, threads=(8, 1, 1), group=(8, 1, 1))
    assert {f.fault for f in shifted.findings} == {Fault.RACE}
    same = kernel.run({0: x, 1: x}, threads=(9, 1, 1), group=(9, 1, 1))
    assert not same.findings


def test_costs_are_exact():
    run, _ = ROWS.run(ROWS.source)
    again, _ = ROWS.run(ROWS.source)
    assert run.cost == again.cost
    cost = run.cost
    assert (cost.threads, cost.simd_operations, cost.threadgroup_barriers, cost.simdgroup_barriers) == (192, 12, 4, 6)
    # 190 of the 192 elements are read; every thread reads n and writes its element.
    assert cost.buffers[0] == msl.Traffic(reads=190, read_bytes=760, distinct_read_bytes=760)
    assert cost.buffers[1] == msl.Traffic(writes=192, written_bytes=768, distinct_written_bytes=768)
    assert cost.buffers[2] == msl.Traffic(reads=192, read_bytes=768, distinct_read_bytes=4)
    # A thread writes tile twice and reads it twice; it reads three sums, twelve bytes in one; 6 lanes write one.
    assert cost.threadgroup.written_bytes == 4 * (2 * 192 + 6)
    assert cost.threadgroup.read_bytes == 4 * (2 + 3) * 192
    assert (cost.threadgroup.writes, cost.threadgroup.reads) == (2 * 192 + 6, (2 + 1) * 192)


def test_the_cost_of_matrices_and_vectors():
    run, _ = MATRIX.run(MATRIX.source)
    assert run.cost.matrix_operations == 8
    assert run.cost.simd_operations == 0
    # A group reads 8 rows of a and 8 columns of b whole. b comes in float4: 16 bytes an access.
    assert run.cost.buffers[2] == msl.Traffic(writes=128, written_bytes=1024, distinct_written_bytes=1024)
    assert run.cost.buffers[1].read_bytes == 4 * 16 * 8 * 4
    assert run.cost.buffers[1].reads == run.cost.buffers[1].read_bytes // 16
    assert run.cost.buffers[1].distinct_read_bytes == 16 * 16 * 4


def test_the_cost_of_atomics():
    run, _ = HISTOGRAM.run(HISTOGRAM.source)
    # Of three groups: 8 stores, 64 additions, 8 loads, 8 additions.
    assert run.cost.atomics == 3 * (8 + 64 + 8 + 8)
    assert run.cost.buffers[1].written_bytes == 3 * 8 * 4
