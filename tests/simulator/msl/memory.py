"""Where the bytes of a dispatch's buffers lie."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from simulator.msl import abi

READ, WRITTEN = 2, 4  # flags of a touched byte, as in runtime/check.cpp
ALIGNMENT = 256  # a copy is as aligned as its tensor
FOR_EVER: list[object] = []  # keeps memory that is never given back
GAP = 1 << 20  # between guarded buffers, so that an index beyond one does not land in another


def extent(tensor: torch.Tensor) -> int:
    """Bytes from the first element of a tensor to the end of its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


class InPlace:
    """Tensors are used where they are."""

    def __init__(self, arguments: Mapping[int, torch.Tensor | bytes], uninitialised: Sequence[int], arena: int) -> None:
        self._addresses: dict[int, int] = {}
        self._kept: list[object] = []
        for index, value in arguments.items():
            if isinstance(value, torch.Tensor):
                self._addresses[index] = value.data_ptr()
            else:
                copy = torch.frombuffer(bytearray(value) or bytearray(1), dtype=torch.uint8).clone()  # aligned
                self._kept.append(copy)
                self._addresses[index] = copy.data_ptr()

    def bind(self, dispatch: abi.Dispatch) -> None:
        # An optional buffer that is not bound still has an address: clang may read a reference before the kernel's
        # own condition says that it needs it.
        for index in range(abi.MAX_BUFFERS):
            dispatch.buffers[index] = self._addresses.get(index) or _nothing()

    def finish(self) -> None:
        """Nothing was copied."""

    def describe(self, raw: abi.RawFinding) -> str:
        return ""

    def traffic(self) -> dict[int, dict[str, int]]:
        return {}


@dataclass
class _Span:
    """Memory that one or several overlapping buffers lie in."""

    begin: int
    end: int
    indices: list[int]
    guarded: int = 0  # the address of the copy
    touched: torch.Tensor = field(default_factory=lambda: torch.empty(0))


class Guarded(InPlace):
    """Tensors are copied, for the time of the dispatch, to memory with gaps between them and a shadow beside them."""

    def __init__(self, arguments: Mapping[int, torch.Tensor | bytes], uninitialised: Sequence[int], arena: int) -> None:
        super().__init__(arguments, uninitialised, arena)
        sizes = {i: extent(v) if isinstance(v, torch.Tensor) else len(v) for i, v in arguments.items()}
        self._uninitialised = set(uninitialised)
        self._spans = _spans({i: (self._addresses[i], self._addresses[i] + size) for i, size in sizes.items() if size})
        block = allocate(sum(span.end - span.begin + GAP for span in self._spans) + 2 * GAP, self._kept)
        at = block + GAP
        for span in self._spans:
            span.guarded = at + (span.begin - at) % ALIGNMENT
            ctypes.memmove(span.guarded, span.begin, span.end - span.begin)
            at = span.guarded + span.end - span.begin + GAP
        self._empty = block  # where a buffer without bytes points
        self._arena = arena

    def bind(self, dispatch: abi.Dispatch) -> None:
        count = len(self._spans)
        self._regions = (abi.Region * max(count, 1))()
        shadows, touched = (abi.pointer * (count + 1))(), (abi.pointer * (count + 1))()
        for index in self._addresses:
            dispatch.buffers[index] = self._empty
        for i, span in enumerate(self._spans):
            size = span.end - span.begin
            unknown = bool(self._uninitialised.intersection(span.indices))
            self._regions[i] = abi.Region(begin=span.guarded, size=size, uninitialised=unknown)
            shadows[i] = allocate(size * abi.SHADOW_BYTES, self._kept)
            span.touched = torch.zeros(size, dtype=torch.uint8)
            touched[i] = span.touched.data_ptr()
            for index in span.indices:
                dispatch.buffers[index] = span.guarded + self._addresses[index] - span.begin
        shadows[count], touched[count] = _arena_shadow(self._arena)
        dispatch.regions, dispatch.region_count = self._regions, count
        dispatch.shadows, dispatch.touched = shadows, touched

    def finish(self) -> None:
        """What the kernel wrote goes to the tensors."""
        for region, span in zip(self._regions, self._spans, strict=False):
            if region.written_bytes:
                ctypes.memmove(span.begin, span.guarded, span.end - span.begin)

    def describe(self, raw: abi.RawFinding) -> str:
        if raw.region > len(self._spans):
            return ""
        offset = ctypes.c_int64(raw.offset).value
        if raw.region == len(self._spans):
            return f"{raw.size} bytes at offset {offset} of a threadgroup variable"
        span = self._spans[raw.region]
        names = " and ".join(f"buffer {index}" for index in span.indices)
        return f"{raw.size} bytes at offset {offset} of {names}, which has {span.end - span.begin}"

    def traffic(self) -> dict[int, dict[str, int]]:
        """By buffer. Buffers that overlap are counted together, each with the sum."""
        return {
            index: {
                "reads": region.reads,
                "read_bytes": region.read_bytes,
                "distinct_read_bytes": int((span.touched & READ).count_nonzero()),
                "writes": region.writes,
                "written_bytes": region.written_bytes,
                "distinct_written_bytes": int((span.touched & WRITTEN).count_nonzero()),
            }
            for region, span in zip(self._regions, self._spans, strict=False)
            for index in span.indices
        }


def _spans(extents: Mapping[int, tuple[int, int]]) -> list[_Span]:
    spans: list[_Span] = []
    for index, (begin, end) in sorted(extents.items(), key=lambda item: item[1]):
        if spans and begin < spans[-1].end:
            spans[-1].end = max(spans[-1].end, end)
            spans[-1].indices.append(index)
        else:
            spans.append(_Span(begin, end, [index]))
    return spans


def allocate(size: int, kept: list[object]) -> int:
    """Zeros, of which the pages that nobody touches cost nothing."""
    block = mmap.mmap(-1, max(size, 1))
    view = ctypes.c_char.from_buffer(block)
    kept.append((block, view))
    return ctypes.addressof(view)


@functools.cache
def _nothing() -> int:
    return allocate(1 << 16, FOR_EVER)


@functools.cache
def _arena_shadow(size: int) -> tuple[int, int]:
    return allocate(size * abi.SHADOW_BYTES, FOR_EVER), allocate(size, FOR_EVER)
