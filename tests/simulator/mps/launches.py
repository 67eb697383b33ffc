"""Runs what the device's queue holds, and keeps what was asked to be kept."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from simulator import msl

MAX_THREADS = 1024
NAME = re.compile(r'\s*#line 1 "([^"]+)\.metal"')

Arguments = dict[int, torch.Tensor | bytes]


class LaunchError(RuntimeError):
    """Findings of a launch."""

    def __init__(self, findings: tuple[msl.Finding, ...]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


@dataclass(frozen=True)
class Launch:
    """A recorded launch. `library` is the name of the .metal file, where the source says it, else the source."""

    library: str
    kernel: str
    source: str = field(repr=False)
    threads: tuple[int, int, int]
    group: tuple[int, int, int]
    run: msl.Run
    _memory: _Snapshot = field(repr=False)

    def replay(self, source: str | None = None, seed: int = 0) -> msl.Run:
        """The same launch again, checked, on a copy of what its buffers held; with another source, if one is given."""
        library = msl.compile(source or self.source, check=True)
        return library.kernel(self.kernel).run(
            self._memory.arguments(), threads=self.threads, group=self.group, seed=seed
        )


@dataclass(frozen=True)
class _Part:
    memory: int
    offset: int
    size: int


class _Snapshot:
    """The arguments of a launch before it ran. Buffers that were one are one again."""

    def __init__(self, bindings: list[Any]) -> None:
        self._memories: dict[int, torch.Tensor] = {}
        self._bindings: dict[int, _Part | bytes] = {}
        for binding in bindings:
            if not binding.is_buffer:
                self._bindings[binding.index] = binding.bytes
                continue
            if binding.memory not in self._memories:
                self._memories[binding.memory] = _bytes_at(binding.memory, binding.memory_size).clone()
            self._bindings[binding.index] = _Part(binding.memory, binding.offset, binding.size)

    def arguments(self) -> Arguments:
        copies = {address: memory.clone() for address, memory in self._memories.items()}
        return {
            index: bound if isinstance(bound, bytes) else copies[bound.memory][bound.offset : bound.offset + bound.size]
            for index, bound in self._bindings.items()
        }


@dataclass
class _Library:
    source: str
    plain: msl.Library
    checked: msl.Library

    @property
    def name(self) -> str:
        match = NAME.match(self.source)
        return match[1] if match else self.source


class Launches:
    """The backend of csrc/backend.h. Libraries and kernels are numbered from 1."""

    def __init__(self) -> None:
        self.check = False
        self.max_threads = MAX_THREADS
        self.launched: set[tuple[str, str]] = set()
        self._libraries: list[_Library] = []
        self._kernels: list[tuple[_Library, str]] = []
        self._records: list[list[Launch]] = []

    def compile(self, source: str) -> int:
        # Metal text is one file; msl takes a single line for a path.
        text = source if "\n" in source else f"{source}\n"
        self._libraries.append(_Library(source, *(msl.compile(text, check=check) for check in (False, True))))
        return len(self._libraries)

    def names(self, library: int) -> list[str]:
        return list(self._libraries[library - 1].plain.names)

    def kernel(self, library: int, name: str) -> int:
        self._kernels.append((self._libraries[library - 1], name))
        return len(self._kernels)

    def run(self, launch: Any) -> None:
        library, name = self._kernels[launch.kernel - 1]
        kernel = (library.checked if self.check else library.plain).kernel(name)
        threads, group = tuple(launch.threads), tuple(launch.group)
        memory = _Snapshot(launch.bindings) if self._records else None
        run = kernel.run(_arguments(launch.bindings), threads=threads, group=group)
        self.launched.add((library.name, name))
        for record in self._records:
            assert memory is not None
            record.append(Launch(library.name, name, library.source, threads, group, run, memory))
        if run.findings:
            raise LaunchError(run.findings)

    @contextmanager
    def record(self, synchronize: Any) -> Iterator[list[Launch]]:
        synchronize()
        record: list[Launch] = []
        self._records.append(record)
        try:
            yield record
            synchronize()
        finally:
            self._records.remove(record)


def _arguments(bindings: list[Any]) -> Arguments:
    return {
        binding.index: _bytes_at(binding.memory + binding.offset, binding.size) if binding.is_buffer else binding.bytes
        for binding in bindings
    }


def _bytes_at(address: int, size: int) -> torch.Tensor:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
