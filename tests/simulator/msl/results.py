"""What a dispatch found and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.msl.abi import Fault


@dataclass(frozen=True)
class Finding:
    """One fault, with the first thread that committed it."""

    fault: Fault
    kernel: str
    file: str
    line: int
    thread: tuple[int, int, int]  # position in the grid
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.fault.value} in {self.kernel}, thread {self.thread}: {self.text}"


@dataclass(frozen=True)
class Traffic:
    """Of one buffer, or of threadgroup memory. An access moves at most 16 bytes, as a vector load does."""

    reads: int = 0
    read_bytes: int = 0
    distinct_read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0
    distinct_written_bytes: int = 0


@dataclass(frozen=True)
class Cost:
    """What a dispatch did, counted. Memory is counted in check mode only."""

    threads: int
    simd_operations: int  # a simdgroup's, not a lane's
    matrix_operations: int  # products of two 8x8 matrices
    threadgroup_barriers: int
    simdgroup_barriers: int
    atomics: int
    buffers: dict[int, Traffic] = field(default_factory=dict)
    threadgroup: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True)
class Run:
    """Empty `findings`: nothing wrong was seen. Without check mode only divergence is looked for.

    `warnings` are what Metal allows but is seldom meant: a simd function without all lanes of its simdgroup.
    """

    findings: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    cost: Cost
