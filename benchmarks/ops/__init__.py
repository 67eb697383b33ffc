"""What a benchmarked op registers: its cases, with inputs, bytes, flops, the reference and the peers of each."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor

Inputs = dict[str, Any]
Results = tuple[Tensor, ...]
# Prepares a peer outside the timing; None where its package is absent or does not do this case.
Peer = Callable[[Any, Inputs], Callable[[], Results] | None]


@dataclass(frozen=True, kw_only=True)
class Case(ABC):
    dtype: torch.dtype = torch.float32
    default: bool = False  # measured without --all

    op: ClassVar[str]
    peers: ClassVar[dict[str, Peer]]

    @property
    def eager_dtype(self) -> torch.dtype:
        """The dtype in which plain torch says how near to the reference a kernel must come."""
        return self.dtype

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def inputs(self) -> Inputs: ...

    @abstractmethod
    def bytes(self) -> int:
        """What has to be read and written once, whatever the method."""

    @abstractmethod
    def flops(self) -> int:
        """What has to be multiplied and added, whatever the method."""

    @abstractmethod
    def ours(self, inputs: Inputs) -> Callable[[], Results]: ...

    @abstractmethod
    def sample(self, results: Results) -> Results:
        """The part of the results that the reference computes: enough to tell a wrong kernel, in reasonable time."""

    @abstractmethod
    def reference(self, inputs: Inputs, dtype: torch.dtype) -> Results: ...


def optional(module: str) -> ModuleType | None:
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError):  # RuntimeError: a package that is there and cannot load here
        return None


def normal(generator: torch.Generator, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*sizes, generator=generator).to(dtype)


def to_mlx(tensor: Tensor) -> Any:
    """A copy for MLX, whose numpy bridge knows no bfloat16."""
    mx = importlib.import_module("mlx.core")
    if tensor.dtype == torch.bfloat16:
        return mx.array(tensor.view(torch.uint16).numpy()).view(mx.bfloat16)
    return mx.array(tensor.numpy())


def to_torch(result: Any) -> Tensor:
    """A peer's result, to be compared; MLX's by way of float32, which holds its every dtype."""
    if isinstance(result, Tensor):
        return result
    mx = importlib.import_module("mlx.core")
    return torch.utils.dlpack.from_dlpack(result.astype(mx.float32))
