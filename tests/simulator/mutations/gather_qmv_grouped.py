"""Faults of the kernels of gather_qmv that group pairs by expert."""

from cases import Call
from cases.gather_qmv import Case, sliced
from simulator.msl import Fault
from simulator.mutations import Mutation


def one_expert() -> Call:
    """A full tile and one of 11 pairs, with fewer outputs than a tile has and a last half of its columns."""
    return Case(K=80, group=16, rows=(43,), experts="one").call()


def apart() -> Call:
    return Case(rows=(24,), bits=6, w_layout=sliced).call()


def many_experts() -> Call:
    """More than the threads that sum up their pairs."""
    return Case(E=300, N=1, K=16, group=16, rows=(1200,)).call()


READ, WRITE = Fault.OUT_OF_BOUNDS_READ, Fault.OUT_OF_BOUNDS_WRITE
TILE = "gather_qmv_tile_b4"
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n"

MUTATIONS = [
    Mutation(
        one_expert,
        "gather_qmv_count",
        "if (pair >= p.pairs) return;\n  const uint expert = read_expert(expert_indices, p, pair);",
        "const uint expert = read_expert(expert_indices, p, pair);",
        READ,
        "threads beyond the last pair count too",
    ),
    Mutation(
        one_expert,
        "gather_qmv_count",
        "atomic_fetch_add_explicit(&counts[expert], 1u, memory_order_relaxed)",
        "reinterpret_cast<device uint*>(counts)[expert]++",
        Fault.RACE,
        "a count without atomics",
    ),
    Mutation(
        many_experts,
        "gather_qmv_start",
        "if (expert < experts) starts[expert] = own;\n    " + BARRIER,
        "if (expert < experts) starts[expert] = own;\n",
        Fault.RACE,
        "the sums of the next 256 experts overwrite those in use",
    ),
    Mutation(
        one_expert,
        "gather_qmv_start",
        "if (lane == 31) sums",
        "sums",
        Fault.RACE,
        "every lane says what its simdgroup's sum is",
    ),
    Mutation(
        one_expert,
        "gather_qmv_start",
        "if (lane == 31) sums",
        "if (lane == 31 && pairs > 0) sums",
        Fault.UNINITIALISED_READ,
        "a simdgroup without pairs leaves its sum out",
    ),
    Mutation(
        one_expert,
        "gather_qmv_start",
        "if (expert < experts) starts[expert] = own;",
        "starts[expert] = own;",
        WRITE,
        "threads beyond the last expert store too",
    ),
    Mutation(
        one_expert,
        "gather_qmv_sort",
        "sorted[start.x + rank] = pair;",
        "sorted[start.x + rank + 1] = pair;",
        WRITE,
        "the last pair lands behind the list",
    ),
    Mutation(
        one_expert,
        "gather_qmv_sort",
        "if (rank % kTilePairs == 0) {",
        "{",
        Fault.RACE,
        "every pair of a tile writes the tile",
    ),
    Mutation(
        one_expert,
        TILE,
        BARRIER + "        dequantize",
        "dequantize",
        Fault.RACE,
        "the next columns overwrite those that are being multiplied",
    ),
    Mutation(
        one_expert,
        TILE,
        BARRIER + "        multiply_columns",
        "multiply_columns",
        Fault.UNINITIALISED_READ,
        "columns are multiplied before they are there",
    ),
    Mutation(
        one_expert,
        TILE,
        BARRIER + "    threadgroup float* const y_to",
        "threadgroup float* const y_to",
        Fault.RACE,
        "results overwrite weights that are being multiplied",
    ),
    Mutation(
        one_expert,
        TILE,
        BARRIER + "  }\n\n  const uint column",
        "}\n\n  const uint column",
        Fault.RACE,
        "results are read before they are there",
    ),
    Mutation(
        one_expert,
        TILE,
        BARRIER + "        multiply_columns",
        "if (has_x) " + BARRIER + "        multiply_columns",
        Fault.BARRIER_DIVERGENCE,
        "a barrier that only some threads reach",
    ),
    Mutation(
        one_expert,
        TILE,
        "        multiply_columns(x_tile",
        "        if (has_x) multiply_columns(x_tile",
        Fault.SIMD_DIVERGENCE,
        "a product of matrices that only some lanes reach",
    ),
    Mutation(
        one_expert,
        TILE,
        "const bool has_weights = n < p.N, has_x",
        "if (n >= p.N) return;\n    const bool has_weights = true, has_x",
        Fault.EARLY_RETURN,
        "threads without weights end before the barriers",
    ),
    Mutation(
        one_expert,
        TILE,
        "w_memory[kTileOutputs * kTileStride / 4];",
        "w_memory[kTileOutputs * kTileStride];",
        Fault.THREADGROUP_MEMORY,
        "a size in floats for one in float4",
    ),
    Mutation(
        one_expert,
        TILE,
        "x_memory[kTilePairs * kTileStride / 4];",
        "x_memory[kTilePairs * kTileColumns / 4];",
        WRITE,
        "rows that end later than the memory for them",
    ),
    Mutation(
        one_expert,
        TILE,
        "c < int(kTileColumns)",
        "c <= int(kTileColumns)",
        Fault.UNINITIALISED_READ,
        "the gaps between rows are multiplied",
    ),
    Mutation(
        one_expert,
        TILE,
        "if (!inside || k >= p.K) {",
        "if (!inside) {",
        READ,
        "columns beyond the last are dequantised",
    ),
    Mutation(
        one_expert,
        TILE,
        "m < count && n0 + column < p.N;",
        "m < count;",
        WRITE,
        "outputs beyond the last are stored",
    ),
    Mutation(
        apart,
        "gather_qmv_tile_b6",
        "if (p.wide_w) {",
        "if (p.N > 0) {",
        Fault.MISALIGNED,
        "wide loads of rows of w that begin anywhere",
    ),
    Mutation(
        one_expert,
        TILE,
        "if (at.y >= counts[p.E + 2]) return;",
        "if (at.y > counts[p.E + 2]) return;",
        READ,
        "a tile beyond the last is multiplied",
    ),
]
