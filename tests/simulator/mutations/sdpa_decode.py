"""Faults of the decode kernels of sdpa."""

import torch

from cases import Call
from cases.sdpa import Case, _bool, _wide_rows
from simulator.msl import Fault
from simulator.mutations import Mutation


def whole() -> Call:
    """One split, all lanes have elements."""
    return Case(Hq=4, Hkv=1, Lq=1, Lk=61, Dk=128, dtype=torch.bfloat16).call()


def ragged() -> Call:
    """Head sizes that no lanes divide, fewer rows than the kernel has room for."""
    return Case(Hq=3, Hkv=1, Lq=1, Lk=61, Dk=80).call()


def masked() -> Call:
    """A mask that ends with its last row."""
    return Case(Hq=1, Hkv=1, Lq=3, Lk=61, Dk=64, mask=lambda: _bool(3, 61)).call()


def split() -> Call:
    return Case(Hq=4, Hkv=1, Lq=1, Lk=700, Dk=64, dtype=torch.float16).call()


def partly_used() -> Call:
    """Fewer keys in use than there are splits for."""
    return Case(Hq=4, Hkv=1, Lq=1, Lk=700, Dk=64, dtype=torch.float16, seqused=(40,)).call()


def apart() -> Call:
    """Rows that begin anywhere."""
    return Case(Hq=4, Hkv=1, Lq=1, Lk=61, Dk=64, dtype=torch.float16, layout=_wide_rows).call()


READ, WRITE, UNINITIALISED = Fault.OUT_OF_BOUNDS_READ, Fault.OUT_OF_BOUNDS_WRITE, Fault.UNINITIALISED_READ
WHOLE = "sdpa_decode_bf16_dk128_dv128"
RAGGED = "sdpa_decode_f32_dk80_dv80"
MASKED = "sdpa_decode_f32_dk64_dv64"
SPLIT = "sdpa_decode_f16_dk64_dv64"
REDUCE = "sdpa_decode_reduce_f16"
ANY = "sdpa_decode_any_f16_dk256_dv256"

MUTATIONS = [
    Mutation(
        whole,
        WHOLE,
        "const bool inside = j < at.end;",
        "const bool inside = j <= at.end;",
        READ,
        "a key beyond the last",
    ),
    Mutation(
        partly_used,
        SPLIT,
        "if (int(thread_index) < at.rows) {",
        "if (int(thread_index) < kSdpaDecodeThreads) {",
        WRITE,
        "a split without keys says so for more rows than there are",
    ),
    Mutation(
        masked,
        MASKED,
        "metal::min(r, at.rows - 1)",
        "r",
        READ,
        "queries of rows beyond the last",
    ),
    Mutation(
        masked,
        MASKED,
        "rows.mask[r] + long(j) * p.mask_key",
        "rows.mask[r] + long(r + j) * p.mask_key",
        READ,
        "the mask of keys beyond the last",
    ),
    Mutation(
        ragged,
        RAGGED,
        "if (kWhole ? size != 0 : d < size) x =",
        "if (size != 0) x =",
        READ,
        "heads are read beyond their size",
    ),
    Mutation(
        ragged,
        RAGGED,
        "if (at.stream == 0 && (S::kWholeValue || d < p.Dv)) part[d] = x;",
        "if (at.stream == 0) part[d] = x;",
        WRITE,
        "the padding of values is stored",
    ),
    Mutation(
        whole,
        WHOLE,
        "threadgroup float part[kSimdgroups * kDv];",
        "threadgroup float part[(kSimdgroups - 1) * kDv];",
        WRITE,
        "room for one simdgroup too few",
    ),
    Mutation(
        ragged,
        RAGGED,
        "for (int d = int(thread_index); d < Dv; d += kSdpaDecodeThreads) {",
        "for (int d = int(thread_index); d < kSdpaDecodeThreads; d += kSdpaDecodeThreads) {",
        READ,
        "columns beyond the last are added up",
    ),
    Mutation(
        whole,
        WHOLE,
        "if (lane_index == 0) part_reference[simdgroup] = own;",
        "if (lane_index == 0 && simdgroup < 3) part_reference[simdgroup] = own;",
        UNINITIALISED,
        "the last simdgroup has no reference",
    ),
    Mutation(
        whole,
        WHOLE,
        "part_reference[simdgroup] = own;\n      threadgroup_barrier(mem_flags::mem_threadgroup);",
        "part_reference[simdgroup] = own;\n      simdgroup_barrier(mem_flags::mem_threadgroup);",
        Fault.RACE,
        "a barrier that is too small for the sums",
    ),
    Mutation(
        whole,
        WHOLE,
        "references[partial] = float2(highest, sum);\n      threadgroup_barrier(mem_flags::mem_threadgroup);",
        "references[partial] = float2(highest, sum);",
        Fault.RACE,
        "the next row's sums replace those that are still read",
    ),
    Mutation(
        split,
        SPLIT,
        "partial_of(p, at.batch, at.kv_head, 0) + group.x;",
        "partial_of(p, at.batch, at.kv_head, 0);",
        Fault.RACE,
        "the splits share one place for their results",
    ),
    Mutation(
        split,
        REDUCE,
        "if (split < p.splits) own[i] = references[partial + split];",
        "own[i] = references[partial + split];",
        READ,
        "references of splits beyond the last",
    ),
    Mutation(
        split,
        REDUCE,
        "if (d < p.Dv) to[d] =",
        "to[d] =",
        WRITE,
        "columns beyond the last are stored",
    ),
    Mutation(
        split,
        REDUCE,
        "const float factor = simd_broadcast(factors[i], ushort(split - i * 32));",
        "if (simd_broadcast(d, ushort(0)) >= p.Dv) threadgroup_barrier(mem_flags::mem_none);\n"
        "        const float factor = simd_broadcast(factors[i], ushort(split - i * 32));",
        Fault.EARLY_RETURN,
        "simdgroups without columns wait for those that have gone",
    ),
    Mutation(
        whole,
        WHOLE,
        "add_key<S>(rows, k, v, bias, p, at);\n  }",
        "add_key<S>(rows, k, v, bias, p, at);\n  }\n  if (simdgroup == 3 && at.end < 128) return;",
        Fault.EARLY_RETURN,
        "a simdgroup goes home before the sums are gathered",
    ),
    Mutation(
        whole,
        WHOLE,
        "if (metal::simd_any(exceeds)) move_references",
        "if (at.stream == 0) simdgroup_barrier(metal::mem_flags::mem_none);\n  if (metal::simd_any(exceeds)) move_references",
        Fault.BARRIER_DIVERGENCE,
        "one key's lanes wait alone",
    ),
    Mutation(
        apart,
        ANY,
        "else {\n      to[i] = 0.0f;\n      if (d < size) to[i] = float(row[d]);",
        "else {\n      to[i] = 0.0f;\n      if (d < size) to[i] = float((*reinterpret_cast<device const metal::vec<T, 2>*>(row + d))[0]);",
        Fault.MISALIGNED,
        "elements that stand anywhere are read in pairs",
    ),
    Mutation(
        whole,
        WHOLE,
        "threadgroup float part[kSimdgroups * kDv];",
        "threadgroup float part[17 * kSimdgroups * kDv];",
        Fault.THREADGROUP_MEMORY,
        "room for every step",
    ),
]
