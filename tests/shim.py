"""Calls a C shim as generated code does: handles in, handles out, an error code, and the error's text on request."""

import ctypes
from typing import Any

import torch
from torch import Tensor

import torch_metal_ops

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _pointer(value: Any, c_type: type) -> Any:
    return None if value is None else ctypes.pointer(c_type(value))


def call_shim(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Tensor:
    """The shim's result, or a RuntimeError with the text behind its error code. The first tensor's device picks it."""
    handles = []

    def handle(tensor: Tensor) -> int:
        capsule = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor)
        handles.append(capsule)
        return _get_pointer(capsule, None)

    schema = op._schema
    values = []
    for position, argument in enumerate(schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
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
    device = args[0].device.type
    function = getattr(ctypes.CDLL(torch_metal_ops._C.__file__), f"aoti_torch_{device}_{op._opname}")
    failed = function(*values, ctypes.byref(result))
    for capsule in handles:  # frees the handle, not the tensor
        torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule)
    if failed:
        assert not result.value, "an error must leave the output handle alone"
        what = ctypes.CDLL(None).torch_exception_get_what_without_backtrace
        what.restype = ctypes.c_char_p
        raise RuntimeError(what().decode())
    return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(_new_capsule(result.value, None, None))
