"""One dispatch: arguments to memory, memory to the runtime, and what the runtime found to `Run`."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import torch

from simulator.msl import abi
from simulator.msl.lines import source_line
from simulator.msl.memory import FOR_EVER, Guarded, InPlace, allocate
from simulator.msl.results import Cost, Finding, Run, Traffic

if TYPE_CHECKING:
    from simulator.msl.library import Kernel

Buffer = torch.Tensor | bytes

THREADGROUP_LIMIT = 32768
STACK_BYTES = 256 * 1024
ARENA_BYTES = 4 * 1024 * 1024
FINDING_CAPACITY = 64


_running = threading.Lock()  # a compiled kernel keeps the state of its dispatch in variables


@functools.cache
def _workspace() -> tuple[int, int]:
    """The addresses of the fibers' stacks and of threadgroup memory."""
    return allocate(STACK_BYTES * abi.MAX_THREADS, FOR_EVER), allocate(ARENA_BYTES, FOR_EVER)


def launch(
    kernel: Kernel,
    code: ctypes.CDLL,
    arguments: dict[int, Buffer],
    grid: Sequence[int],
    group: Sequence[int],
    threadgroup_memory: Mapping[int, int],
    uninitialised: Sequence[int],
    seed: int,
) -> Run:
    _require_legal(kernel, arguments, grid, group, threadgroup_memory)
    with _running:
        memory = (Guarded if kernel.check else InPlace)(arguments, uninitialised, ARENA_BYTES)
        findings = (abi.RawFinding * FINDING_CAPACITY)()
        dispatch = abi.Dispatch(
            grid=(abi.u32 * 3)(*grid),
            group=(abi.u32 * 3)(*group),
            seed=seed,
            threadgroup_limit=THREADGROUP_LIMIT,
            stack_bytes=STACK_BYTES,
            arena_bytes=ARENA_BYTES,
            findings=findings,
            finding_capacity=FINDING_CAPACITY,
        )
        dispatch.stacks, dispatch.arena = _workspace()
        for index, size in threadgroup_memory.items():
            dispatch.dynamic_bytes[index] = size
        memory.bind(dispatch)
        code.msl_run(ctypes.byref(dispatch))
        memory.finish()
        found = [(raw.legal, _finding(kernel, raw, memory.describe(raw))) for raw in findings[: dispatch.finding_count]]
        return Run(
            tuple(finding for legal, finding in found if not legal),
            tuple(finding for legal, finding in found if legal),
            _cost(dispatch.counts, memory),
        )


def _require_legal(
    kernel: Kernel,
    arguments: Mapping[int, Buffer],
    grid: Sequence[int],
    group: Sequence[int],
    threadgroup_memory: Mapping[int, int],
) -> None:
    """What Metal's own validation would stop."""

    def require(holds: bool, rule: str, value: object) -> None:
        if not holds:
            raise ValueError(f"{kernel.name}: {rule}, got {value}")

    require(len(grid) == 3 and min(grid) > 0, "the grid must have three dimensions of at least 1", tuple(grid))
    require(len(group) == 3 and min(group) > 0, "a threadgroup must have three dimensions of at least 1", tuple(group))
    require(prod(group) <= abi.MAX_THREADS, f"a threadgroup has at most {abi.MAX_THREADS} threads", tuple(group))
    declared = {abi.BUFFER: "buffer", abi.THREADGROUP: "threadgroup"}
    for argument in kernel.arguments:
        given = {abi.BUFFER: arguments, abi.THREADGROUP: threadgroup_memory}.get(argument.kind)
        if given is not None and not argument.optional:
            index = argument.index
            require(index in given, f"{declared[argument.kind]} {index} must be bound", f"{sorted(given)}")
    dynamic = sum(threadgroup_memory.values())
    require(
        dynamic <= ARENA_BYTES // 2, f"the simulator has {ARENA_BYTES // 2} bytes for threadgroup arguments", dynamic
    )
    for index, value in arguments.items():
        require(0 <= index < abi.MAX_BUFFERS, "buffer indices are 0 to 30", index)
        if isinstance(value, torch.Tensor):
            require(value.device.type == "cpu", f"buffer {index} must be on the cpu", value.device)
            require(not value.is_conj() and not value.is_neg(), f"buffer {index} must be plain memory", "a lazy view")


def _finding(kernel: Kernel, raw: abi.RawFinding, where: str) -> Finding:
    file, line = (raw.file or b"").decode(), raw.line
    if raw.address:
        file, line = source_line(kernel.path, raw.address)
    text = " ".join(part for part in (raw.text.decode(), where) if part)
    return Finding(abi.FAULTS[raw.fault], kernel.name, file, line, tuple(raw.thread), text)


def _cost(counts: abi.Counts, memory: InPlace) -> Cost:
    return Cost(
        threads=counts.threads,
        simd_operations=counts.simd_operations,
        matrix_operations=counts.matrix_operations,
        threadgroup_barriers=counts.threadgroup_barriers,
        simdgroup_barriers=counts.simdgroup_barriers,
        atomics=counts.atomics,
        buffers={index: Traffic(**values) for index, values in memory.traffic().items()},
        threadgroup=Traffic(
            reads=counts.threadgroup_reads,
            read_bytes=counts.threadgroup_read_bytes,
            writes=counts.threadgroup_writes,
            written_bytes=counts.threadgroup_written_bytes,
        ),
    )
