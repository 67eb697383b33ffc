"""Faults of the decode kernels of gather_qmv."""

import torch

from cases import Call
from cases.gather_qmv import Case, sliced
from simulator.msl import Fault
from simulator.mutations import Mutation


def last_expert() -> Call:
    """Outputs that do not fill the last simdgroup, at the end of w and of x."""
    return Case(rows=(3,), experts="one").call()


def no_expert() -> Call:
    return Case(rows=(3,), experts="none").call()


def bad_index() -> Call:
    call = Case(rows=(3,)).call()
    call.args[4][1] = 3
    return call


def half_unit() -> Call:
    """K is a multiple of 16, but not of the 32 weights that a lane takes."""
    return Case(K=48, bits=5, group=16, rows=(3,), experts="one").call()


def apart() -> Call:
    """Rows of x and w that begin anywhere."""
    return Case(rows=(3,), dtype=torch.float16, x_layout=sliced, w_layout=sliced).call()


def infinite() -> Call:
    return Case(rows=(3,), special="x", experts="one").call()


READ, WRITE = Fault.OUT_OF_BOUNDS_READ, Fault.OUT_OF_BOUNDS_WRITE
B4 = "gather_qmv_decode_b4"
B5 = "gather_qmv_decode_b5"

MUTATIONS = [
    Mutation(
        last_expert,
        B4,
        "const int rows = int(min(p.N - n, uint(kRows)));",
        "const int rows = kRows;",
        READ,
        "the last rows of w are taken for full",
    ),
    Mutation(
        last_expert,
        B4,
        "if (n >= p.N) return;",
        "",
        READ,
        "a simdgroup without rows goes on",
    ),
    Mutation(
        no_expert,
        B4,
        "if (int(lane) < rows) store_float",
        "if (lane < 4) store_float",
        WRITE,
        "zeros beyond the last output",
    ),
    Mutation(
        bad_index,
        B4,
        "if (expert >= p.E) {",
        "if (expert == p.E) {",
        READ,
        "an index out of range is followed",
    ),
    Mutation(
        half_unit,
        B5,
        "p.K - k < uint(kUnit) ? kBytes / 2 : kBytes",
        "kBytes",
        READ,
        "more bytes of w than the row has",
    ),
    Mutation(
        half_unit,
        B5,
        "if (k0 >= p.K) continue;",
        "",
        READ,
        "more of x than the row has",
    ),
    Mutation(
        apart,
        B4,
        "if (p.wide_w) {",
        "if (p.N > 0) {",
        Fault.MISALIGNED,
        "wide loads of rows of w that begin anywhere",
    ),
    Mutation(
        apart,
        B4,
        "if (!p.wide_x) {",
        "if (p.N == 0) {",
        Fault.MISALIGNED,
        "wide loads of rows of x that begin anywhere",
    ),
    Mutation(
        last_expert,
        B4,
        "(at.y * kDecodeSimdgroups + simdgroup) * kRows",
        "(at.y * kDecodeSimdgroups + simdgroup) * (kRows - 1)",
        Fault.RACE,
        "two simdgroups have one output",
    ),
    Mutation(
        infinite,
        B4,
        "k < p.K; k += 32)",
        "k <= p.K; k += 32)",
        READ,
        "one weight too many, where the result is not finite",
    ),
]
