"""Faults of the prefill kernels of sdpa."""

import torch

from cases import Call
from cases.sdpa import Case, _bool, _wide_rows
from simulator.msl import Fault
from simulator.mutations import Mutation


def ragged() -> Call:
    """No size is a multiple of a tile's."""
    return Case(Lq=41, Lk=77, Dk=40, Dv=37).call()


def masked() -> Call:
    """A mask that ends with its last row, which hides keys from all."""
    return Case(Hq=1, Hkv=1, Lq=41, Lk=77, Dk=64, mask=lambda: _bool(41, 77) & (torch.arange(77) % 9 > 1)).call()


def whole() -> Call:
    return Case(Lq=32, Lk=128, Dk=64, dtype=torch.bfloat16).call()


def apart() -> Call:
    """Rows that begin anywhere."""
    return Case(Lq=33, Lk=40, Dk=64, dtype=torch.float16, layout=_wide_rows).call()


def split() -> Call:
    """Few rows and many keys, which threadgroups divide."""
    return Case(Hq=1, Hkv=1, Lq=10, Lk=700, Dk=64).call()


READ, WRITE, UNINITIALISED = Fault.OUT_OF_BOUNDS_READ, Fault.OUT_OF_BOUNDS_WRITE, Fault.UNINITIALISED_READ
F32 = "sdpa_prefill_f32_dk64_dv64"
F16 = "sdpa_prefill_f16_dk64_dv64"
BF16 = "sdpa_prefill_bf16_dk64_dv64"

MUTATIONS = [
    Mutation(
        ragged,
        F32,
        "at.column < keys ? p.Dk : 0, right_size",
        "p.Dk, right_size",
        READ,
        "keys beyond the last",
    ),
    Mutation(
        ragged,
        F32,
        "(keys_seen >> at.row & 1u) != 0 ? p.Dv : 0",
        "p.Dv",
        READ,
        "values of hidden keys beyond the last",
    ),
    Mutation(
        masked,
        F32,
        "min(r, tile.count - 1)",
        "r",
        READ,
        "the mask of rows beyond the last",
    ),
    Mutation(
        masked,
        F32,
        "k >= row.keys.begin && k < row.keys.end",
        "k >= row.keys.begin",
        READ,
        "the mask of keys beyond the last",
    ),
    Mutation(
        ragged,
        F32,
        "if (d + i + j < size) row[d + i + j] = v[j];",
        "row[d + i + j] = v[j];",
        WRITE,
        "padding is stored",
    ),
    Mutation(
        whole,
        BF16,
        "queries[kRows * S::kQueryStride / 4]",
        "queries[kRows * kDk / 4]",
        WRITE,
        "the padding of the rows is forgotten",
    ),
    Mutation(
        ragged,
        F32,
        "d < S::kDk; d += 128",
        "d < p.Dk; d += 128",
        UNINITIALISED,
        "the queries are not padded with zeros",
    ),
    Mutation(
        ragged,
        F32,
        "if (at.column == 0) tile.maxima[simdgroup * S::kRows + 8 * i + at.row] = m;",
        "if (at.column == 0 && 8 * i + at.row < tile.count) tile.maxima[simdgroup * S::kRows + 8 * i + at.row] = m;",
        UNINITIALISED,
        "rows beyond the last have no maximum",
    ),
    Mutation(
        whole,
        BF16,
        "threadgroup_barrier(mem_flags::mem_threadgroup);\n    PrefillValues<S> values;",
        "PrefillValues<S> values;",
        Fault.RACE,
        "the maxima are read before all are there",
    ),
    Mutation(
        whole,
        BF16,
        "threadgroup_barrier(mem_flags::mem_threadgroup);\n    add_values",
        "simdgroup_barrier(mem_flags::mem_threadgroup);\n    add_values",
        Fault.RACE,
        "a barrier that is too small for the weights",
    ),
    Mutation(
        whole,
        BF16,
        "seen_now = seen_now == seen ? seen + kSimdgroups : seen;",
        "",
        Fault.RACE,
        "one place for what two steps have in use",
    ),
    Mutation(
        whole,
        BF16,
        "copy_queries<S>(tile, query, p, simdgroup, lane);\n  threadgroup_barrier(mem_flags::mem_threadgroup);",
        "copy_queries<S>(tile, query, p, simdgroup, lane);",
        Fault.RACE,
        "the queries are read while they are copied",
    ),
    Mutation(
        whole,
        BF16,
        "threadgroup_barrier(mem_flags::mem_threadgroup);\n  const uint rows_seen",
        "const uint rows_seen",
        Fault.RACE,
        "sums are put where weights are still read",
    ),
    Mutation(
        ragged,
        F32,
        "const int r = 8 * i + at.row;\n    if (r < tile.count)",
        "const int r = 8 * i + at.row;\n    if (r < kRows)",
        Fault.RACE,
        "rows beyond the last are stored over it",
    ),
    Mutation(
        split,
        F32,
        "tile_row * p.splits + split;",
        "tile_row * p.splits;",
        Fault.RACE,
        "the splits share one place for their results",
    ),
    Mutation(
        masked,
        F32,
        "if (i < blocks) {",
        "if (i < blocks && v.runs[0][0] != 0.0f) {",
        Fault.SIMD_DIVERGENCE,
        "lanes without a value leave out a product of matrices",
    ),
    Mutation(
        masked,
        F32,
        "const float m = row_maximum(s[i]);",
        "if (keys_seen == 0) threadgroup_barrier(mem_flags::mem_none);\n    const float m = row_maximum(s[i]);",
        Fault.BARRIER_DIVERGENCE,
        "a simdgroup without keys waits alone",
    ),
    Mutation(
        ragged,
        F32,
        "find_rows<S>(tile, p, seqused, 32 * simdgroup + lane);",
        "find_rows<S>(tile, p, seqused, 32 * simdgroup + lane);\n  if (S::kColumns * simdgroup >= p.Dv) return;",
        Fault.EARLY_RETURN,
        "a simdgroup without values goes home",
    ),
    Mutation(
        apart,
        F16,
        "load_run<typename S::T>(a, left, d + kRun * at.row, left_size, p.vectors != 0);",
        "load_run<typename S::T>(a, left, d + kRun * at.row, left_size, true);",
        Fault.MISALIGNED,
        "keys are taken for aligned",
    ),
    Mutation(
        whole,
        BF16,
        "kWeightStride = kKeys + 4",
        "kWeightStride = 8 * kKeys",
        Fault.THREADGROUP_MEMORY,
        "weights of 32 KB",
    ),
]
