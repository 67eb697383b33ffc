"""runtime/abi.h, for ctypes."""

from __future__ import annotations

import ctypes
from enum import Enum

MAX_BUFFERS = 31
MAX_THREADS = 1024

u8, u32, u64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64
pointer = ctypes.c_void_p

# Parameter, in order; only these two name memory.
BUFFER, THREADGROUP = 0, 1


class Fault(Enum):
    """What a finding is about."""

    OUT_OF_BOUNDS_READ = "out-of-bounds read"
    OUT_OF_BOUNDS_WRITE = "out-of-bounds write"
    UNINITIALISED_READ = "uninitialised read"
    RACE = "race"
    MISALIGNED = "misaligned access"
    SIMD_DIVERGENCE = "simd divergence"
    INACTIVE_LANE = "inactive lane"
    BARRIER_DIVERGENCE = "barrier divergence"
    EARLY_RETURN = "early return"
    THREADGROUP_MEMORY = "threadgroup memory"


FAULTS = tuple(Fault)


class Argument(ctypes.Structure):
    _fields_ = [("kind", u32), ("index", u32), ("optional", u32)]


class RawFinding(ctypes.Structure):
    _fields_ = [
        ("fault", u32),
        ("legal", u32),
        ("line", u32),
        ("file", ctypes.c_char_p),
        ("address", u64),
        ("thread", u32 * 3),
        ("region", u32),
        ("offset", u64),
        ("size", u64),
        ("text", ctypes.c_char * 96),
    ]


class Region(ctypes.Structure):
    _fields_ = [
        ("begin", pointer),
        ("size", u64),
        ("uninitialised", u64),
        ("reads", u64),
        ("read_bytes", u64),
        ("writes", u64),
        ("written_bytes", u64),
    ]


SHADOW_BYTES = 16  # sizeof(msl::Shadow)


class Counts(ctypes.Structure):
    _fields_ = [
        (name, u64)
        for name in (
            "threadgroup_reads",
            "threadgroup_read_bytes",
            "threadgroup_writes",
            "threadgroup_written_bytes",
            "simd_operations",
            "matrix_operations",
            "simdgroup_barriers",
            "threadgroup_barriers",
            "atomics",
            "threads",
        )
    ]


class Dispatch(ctypes.Structure):
    _fields_ = [
        ("buffers", pointer * MAX_BUFFERS),
        ("dynamic_bytes", u32 * MAX_BUFFERS),
        ("grid", u32 * 3),
        ("group", u32 * 3),
        ("seed", u32),
        ("threadgroup_limit", u32),
        ("stacks", pointer),
        ("stack_bytes", u64),
        ("arena", pointer),
        ("arena_bytes", u64),
        ("findings", ctypes.POINTER(RawFinding)),
        ("finding_capacity", u32),
        ("finding_count", u32),
        ("counts", Counts),
        ("regions", ctypes.POINTER(Region)),
        ("region_count", u32),
        ("stopped", u32),
        ("shadows", ctypes.POINTER(pointer)),
        ("touched", ctypes.POINTER(pointer)),
    ]
