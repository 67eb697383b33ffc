"""Calls a C shim as generated code does: handles in, handles out, an error code, the error's text on stderr."""

import ctypes
from typing import Any

import torch
import torch_metal_ops
from torch import Tensor


def _pointer(value: Any, c_type: type) -> Any:
    return None if value is None else ctypes.pointer(c_type(value))


def call_shim(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Tensor | None:
    """The shim's result, or None when it returned an error code. Its tensors' device picks the shim."""
    keep = []  # the tensors behind the handles

    def handle(tensor: Tensor) -> int:
        keep.append(tensor)
        (pointer,) = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([tensor])
        return pointer

    schema = op._schema
    values = []
    for position, argument in enumerate(schema.arguments):
        if position < len(args):
            value = args[position]
        else:
            value = kwargs.get(argument.name, argument.default_value)
        match str(argument.type):
            case "Tensor":
                values.append(ctypes.c_void_p(handle(value)))
            case "Optional[Tensor]":
                values.append(_pointer(None if value is None else handle(value), ctypes.c_void_p))
            case "int":
                values.append(ctypes.c_int64(value))
            case "Optional[int]":
                values.append(_pointer(value, ctypes.c_int64))
            case "float":
                values.append(ctypes.c_double(value))
            case "Optional[float]":
                values.append(_pointer(value, ctypes.c_double))
            case "bool":
                values.append(ctypes.c_int32(value))
            case other:
                raise NotImplementedError(other)
    result = ctypes.c_void_p()
    function = getattr(ctypes.CDLL(torch_metal_ops._C.__file__), f"aoti_torch_{keep[0].device.type}_{op._opname}")
    failed = function(*values, ctypes.byref(result))
    if failed:
        assert not result.value, "an error must leave the output handle alone"
        return None
    (tensor,) = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([result.value])
    return tensor
