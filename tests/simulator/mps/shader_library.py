"""What torch.mps.compile_shader returns."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from simulator.msl import CompileError

FORMATS = {"fp16": "e", "fp32": "f", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "bool": "?"}

Extent = int | Sequence[int]


class ShaderLibrary:
    """A compiled source; its kernels are attributes."""

    def __init__(self, device: ModuleType, source: str) -> None:
        try:
            self._library = device.ShaderLibrary(source)
        except CompileError as error:
            raise SyntaxError(f"failed to compile {source}\n{error}") from error

    def __dir__(self) -> list[str]:
        return self._library.names()

    def __getattr__(self, name: str) -> ShaderKernel:
        if name not in self._library.names():
            raise AttributeError(f"the shader library has no kernel {name}, only {', '.join(self._library.names())}")
        return ShaderKernel(name, self._library.kernel(name))


class ShaderKernel:
    def __init__(self, name: str, function: Any) -> None:
        self.__name__ = name
        self._function = function

    @property
    def max_threads_per_threadgroup(self) -> int:
        return self._function.max_threads

    @property
    def thread_execution_width(self) -> int:
        return self._function.execution_width

    def __call__(
        self,
        *arguments: Any,
        threads: Extent | None = None,
        group_size: Extent | None = None,
        arg_casts: str | dict[int, str] | None = None,
    ) -> None:
        """Launches the kernel: by default, a thread for each element of the first tensor."""
        if threads is None:
            threads = next(argument.numel() for argument in arguments if isinstance(argument, torch.Tensor))
        casts = arg_casts if isinstance(arg_casts, dict) else dict.fromkeys(range(len(arguments)), arg_casts)
        bound = [_bound(argument, casts.get(index)) for index, argument in enumerate(arguments)]
        self._function.launch(bound, _extent(threads), None if group_size is None else _extent(group_size))


def _extent(extent: Extent) -> list[int]:
    return [extent] if isinstance(extent, int) else list(extent)


def _bound(argument: Any, cast: str | None) -> torch.Tensor | bytes:
    if isinstance(argument, torch.Tensor):
        return argument
    values = argument if isinstance(argument, list | tuple) else [argument]
    code = FORMATS[cast] if cast else {bool: "?", int: "q", float: "f"}[type(values[0])]
    return struct.pack(f"{len(values)}{code}", *values)
