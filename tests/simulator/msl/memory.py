"""Where the bytes of a dispatch's buffers lie."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence

import torch

from simulator.msl import abi

GAP = 1 << 20  # between guarded buffers, so that an index beyond one does not land in another
PAGE = mmap.PAGESIZE


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
        for index, address in self._addresses.items():
            dispatch.buffers[index] = address

    def finish(self) -> None:
        """Nothing was copied."""

    def describe(self, raw: abi.RawFinding) -> str:
        return ""

    def traffic(self) -> dict[int, dict[str, int]]:
        return {}
