"""Runs what is inside a .pte's Metal delegate, by the C functions and in the order of ExecuTorch's Metal runtime.

The runtime writes the library to a file, loads it, makes a container, hands it the weights as one block, and calls it.
Here the device is the simulated one, and libtorch takes the place of ExecuTorch's own tensors.
"""

import ctypes
import tempfile
from pathlib import Path

import torch
from export_executorch import Delegate
from torch import Tensor

_TORCH = Path(torch.__file__).parent / "lib"
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _expect(failed: int, what: str) -> None:
    if failed:
        reason = ctypes.CDLL(None).torch_exception_get_what_without_backtrace
        reason.restype = ctypes.c_char_p
        raise RuntimeError(f"{what} failed: {reason().decode()}")


def _handle(tensor: Tensor) -> int:
    return _get_pointer(torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor), None)


def _tensor(handle: int) -> Tensor:
    return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(_new_capsule(handle, None, None))


class Loaded:
    """A delegate that can be called; its buffers keep what a call leaves in them."""

    def __init__(self, delegate: Delegate) -> None:
        ctypes.CDLL(str(_TORCH / "libtorch_cpu.so"), mode=ctypes.RTLD_GLOBAL)  # the library names no torch
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(delegate.library)
            file.flush()
            self._library = ctypes.CDLL(file.name)
        self._weights = ctypes.create_string_buffer(delegate.weights, len(delegate.weights))
        self._container = ctypes.c_void_p()
        create = self._library.AOTInductorModelContainerCreateWithDevice
        _expect(create(ctypes.byref(self._container), ctypes.c_size_t(1), b"mps", None), "creating the container")
        if delegate.weights:
            update = self._library.AOTInductorModelUpdateConstantsFromBlob
            _expect(update(self._container, self._weights), "loading the weights")

    def _count(self, what: str) -> int:
        count = ctypes.c_size_t()
        function = getattr(self._library, f"AOTInductorModelContainerGetNum{what}")
        _expect(function(self._container, ctypes.byref(count)), f"counting {what}")
        return count.value

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        assert self._count("Inputs") == len(inputs)
        # In the memory order of the example inputs: the code relies on it, and a .pte says it of each input.
        given = (ctypes.c_void_p * len(inputs))(*(_handle(x.to("mps")) for x in inputs))
        results = (ctypes.c_void_p * self._count("Outputs"))()
        sizes = ctypes.c_size_t(len(given)), ctypes.c_size_t(len(results))
        run = self._library.AOTInductorModelContainerRun
        _expect(run(self._container, given, sizes[0], results, sizes[1], None, None), "the call")
        return tuple(_tensor(handle) for handle in results)
