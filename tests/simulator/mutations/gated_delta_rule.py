"""Faults of the recurrent and the chunked kernels of gated_delta_rule."""

from cases import Call
from cases.gated_delta_rule import NAN, Case, wide_rows
from simulator.msl import Fault
from simulator.mutations import Mutation

# Fewer rows than a threadgroup takes, at the end of every tensor; steps that fill no block.


def few() -> Call:
    return Case(T=6, Dk=24, Dv=5, Hv=1).call()


def apart() -> Call:
    """Rows of the state that begin anywhere."""
    return Case(T=2, Dk=64, Dv=5, layout={"state": wide_rows}).call()


def many() -> Call:
    return Case(T=21, Dk=36, Dv=9, Hv=1).call()


def two_threadgroups() -> Call:
    return Case(T=16, Dk=36, Dv=72, Hv=1).call()


def not_a_number() -> Call:
    return Case(T=16, Dk=36, Dv=16, poison=("v", (0, 3, 0, 2), NAN)).call()


def many_channels() -> Call:
    return Case(T=16, Dk=36, Dv=9, per_channel=True).call()


def largest() -> Call:
    return Case(T=16, Dk=256, Dv=8, Hv=1, per_channel=True).call()


READ, WRITE = Fault.OUT_OF_BOUNDS_READ, Fault.OUT_OF_BOUNDS_WRITE
RECURRENT, CHUNKED = "gated_delta_rule_recurrent_upto64", "gated_delta_rule_chunked_upto64"
BARRIER = "metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);"
CHANNELS = "_channels"

MUTATIONS = [
    Mutation(
        few, RECURRENT, "metal::min(p.Dv - first_row, kRows)", "kRows", READ, "values of rows that v does not have"
    ),
    Mutation(few, RECURRENT, "if (row < p.Dv) {\n", "if (true) {\n", READ, "rows that the state does not have"),
    Mutation(few, RECURRENT, "if (row < p.Dv) mine.store", "mine.store", WRITE, "the same rows, written"),
    Mutation(few, RECURRENT, "if (part == 0 && row < p.Dv) {", "if (part == 0) {", WRITE, "outputs without a row"),
    Mutation(
        few,
        RECURRENT,
        f"{BARRIER}\n\n    for (uint t = 0; has_rows",
        "\n\n    for (uint t = 0; has_rows",
        Fault.RACE,
        "steps are used while they are copied",
    ),
    Mutation(few, RECURRENT, f"if (first + kSteps < p.T) {BARRIER}", "", Fault.RACE, "steps are replaced while in use"),
    Mutation(
        few,
        RECURRENT,
        "const uint padded = (p.Dk + 4 * kLanes - 1) / (4 * kLanes) * (4 * kLanes);",
        "const uint padded = p.Dk;",
        Fault.UNINITIALISED_READ,
        "no zeros behind the last channel",
    ),
    Mutation(
        few,
        RECURRENT,
        "threadgroup float values[kSteps * kRows];",
        "threadgroup float values[kSteps * kRows - 1];",
        WRITE,
        "one value too few in threadgroup memory",
    ),
    Mutation(
        apart,
        "gated_delta_rule_recurrent_dk64",
        "constant GatedDeltaParams& p) {\n    if (p.whole_vectors == 0) {",
        "constant GatedDeltaParams& p) {\n    if (false) {",
        Fault.MISALIGNED,
        "vectors where the state has none",
    ),
    Mutation(
        many,
        CHUNKED,
        "const bool inside = channel(tile) < p.Dk && first + e < p.Dv;",
        "const bool inside = channel(tile) < p.Dk;",
        READ,
        "rows that the state does not have",
    ),
    Mutation(
        many,
        CHUNKED,
        "if (channel(tile) < p.Dk && first + e < p.Dv) store_float",
        "if (first + e < p.Dv) store_float",
        WRITE,
        "channels that the state does not have",
    ),
    Mutation(
        many,
        CHUNKED,
        "if (first + 1 < p.Dv) store_float",
        "store_float",
        WRITE,
        "the second of two outputs is beyond the last row",
    ),
    Mutation(
        many,
        CHUNKED,
        "rows.lane_row < steps ? rows.load_values",
        "true ? rows.load_values",
        READ,
        "values of steps that the last chunk does not have",
    ),
    Mutation(
        many,
        CHUNKED,
        "t < block.steps && c < block.width ? float(from[index]) : fill",
        "c < block.width ? float(from[index]) : fill",
        READ,
        "keys of steps that the last chunk does not have",
    ),
    Mutation(
        many,
        CHUNKED,
        "threadgroup float keys[kChunk * kStride];",
        "threadgroup float keys[kChunk * kWidth / 2];",
        WRITE,
        "too few keys in threadgroup memory",
    ),
    Mutation(
        many,
        CHUNKED,
        "pairs[kChunk * i + j + e] = counts ?",
        "if (counts) pairs[kChunk * i + j + e] = counts ?",
        Fault.UNINITIALISED_READ,
        "no zeros above the diagonal",
    ),
    Mutation(
        many,
        CHUNKED,
        "uint lane) {\n  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);",
        "uint lane) {",
        Fault.RACE,
        "the system is solved while its right side is stored",
    ),
    Mutation(
        many,
        CHUNKED,
        "  }\n  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);",
        "  }",
        Fault.RACE,
        "the solution is used while it is found",
    ),
    Mutation(many, CHUNKED, "else if (simdgroup < 2)", "else if (simdgroup < 3)", Fault.RACE, "two write one matrix"),
    Mutation(many, CHUNKED, f"if (first + kChunk < p.T) {BARRIER}", "", Fault.RACE, "keys are replaced while in use"),
    Mutation(
        many,
        CHUNKED,
        "const bool has_rows = first_row < p.Dv;",
        "const bool has_rows = first_row < p.Dv;\n  if (!has_rows) return;",
        Fault.EARLY_RETURN,
        "a simdgroup without rows is gone before the barrier",
    ),
    Mutation(
        many,
        CHUNKED,
        f"elements(with_q) *= decay;\n      {BARRIER}",
        f"elements(with_q) *= decay;\n      if (has_rows) {BARRIER}",
        Fault.BARRIER_DIVERGENCE,
        "a simdgroup without rows passes by a barrier",
    ),
    Mutation(
        two_threadgroups,
        CHUNKED,
        "(group.x * kSimdgroups + simdgroup) * kChunk",
        "(group.x * 4 + simdgroup) * kChunk",
        Fault.RACE,
        "two threadgroups have one row",
    ),
    Mutation(
        not_a_number,
        CHUNKED,
        "if (metal::simd_all(finite))",
        "if (finite)",
        Fault.SIMD_DIVERGENCE,
        "some lanes go step by step, others multiply matrices",
    ),
    Mutation(
        many_channels,
        CHUNKED + CHANNELS,
        f"key_pairs, query_pairs);\n      {BARRIER}",
        "key_pairs, query_pairs);",
        Fault.RACE,
        "keys decay while their products are summed up",
    ),
    Mutation(
        largest,
        "gated_delta_rule_chunked_upto256" + CHANNELS,
        "kStride = kWidth + 8;",
        "kStride = kWidth + 64;",
        Fault.THREADGROUP_MEMORY,
        "a wider pad than there is memory for",
    ),
]
