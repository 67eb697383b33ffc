"""One table of cases an op. A row says why it is there; every backend is held to all of them (test_contract.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload


@dataclass
class Call:
    """One call of an op, with the truth about it."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    # The results in a given dtype: the returned tensor, then each mutated argument's new value.
    reference: Callable[[torch.dtype], tuple[Tensor, ...]] | None = None
    # The dtype in which plain torch is asked how near it gets: that of the inputs unless the op promises more.
    eager_dtype: torch.dtype | None = None

    def tensors(self) -> list[Tensor]:
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)]

    def mutated(self) -> list[Tensor]:
        aliases = (argument.alias_info for argument in self.op._schema.arguments)
        return [value for value, alias in zip(self.args, aliases, strict=False) if alias is not None and alias.is_write]

    def run(self) -> tuple[Tensor, ...]:
        return (self.op(*self.args, **self.kwargs), *self.mutated())

    def copy(self, device: str | None = None) -> Call:
        """The same call on copies of its tensors that keep their strides, on another device if one is given."""
        memo: dict[int, Tensor] = {}

        def move(value: Any) -> Any:
            return copy_with_strides(value, device or value.device, memo) if isinstance(value, Tensor) else value

        args = tuple(move(value) for value in self.args)
        kwargs = {name: move(value) for name, value in self.kwargs.items()}
        return Call(self.op, args, kwargs, self.reference, self.eager_dtype)


def copy_with_strides(tensor: Tensor, device: torch.device | str, memo: dict[int, Tensor]) -> Tensor:
    """A copy with the same strides and storage offset; views of one storage become views of one copy of it."""
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key not in memo:
        if str(device) == "meta":
            memo[key] = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta")
        else:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            memo[key] = flat.clone().to(device)
    base = torch.empty(0, dtype=tensor.dtype, device=device)
    return base.set_(memo[key].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
