"""Loads the compiled extension, and explains itself when that fails."""

import ctypes
import importlib
import importlib.util
from types import ModuleType

import torch

REINSTALL = "Reinstall: pip install --no-build-isolation --force-reinstall --no-deps torch-metal-ops"

# ExecuTorch defines two of the ops with the same schemas. Its modules must come first: it does not look whether an op
# is there already, we do.
_EXECUTORCH_OP_MODULES = (
    "executorch.backends.apple.metal.ops.gather_qmv",
    "executorch.backends.apple.metal.ops.gated_delta_rule",
)


def _minor_release(version: str) -> tuple[str, ...]:
    return tuple(version.split("+")[0].split(".")[:2])


def _built_with() -> str:
    try:
        from torch_metal_ops._build import BUILT_WITH_TORCH
    except ImportError as error:
        raise ImportError(f"torch_metal_ops: its extension is not built, got no build record. {REINSTALL}") from error
    return BUILT_WITH_TORCH


def _import_executorch_ops() -> None:
    for name in _EXECUTORCH_OP_MODULES:
        try:
            importlib.import_module(name)
        except ImportError:  # ExecuTorch is not installed, or is a version without this op
            return


def load() -> ModuleType:
    """Load the extension with its symbols visible to the libraries that AOTInductor packages bring."""
    built, installed = _built_with(), torch.__version__
    if _minor_release(built) != _minor_release(installed):
        raise ImportError(
            f"torch_metal_ops: its extension was built for torch {built} and torch {installed} is installed. {REINSTALL}"
        )
    _import_executorch_ops()
    spec = importlib.util.find_spec("torch_metal_ops._C")
    if spec is None or spec.origin is None:
        raise ImportError(f"torch_metal_ops: its extension is missing beside its build record. {REINSTALL}")
    try:
        ctypes.CDLL(spec.origin, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ImportError(
            f"torch_metal_ops: could not load its extension, built for torch {built}; torch {installed} is installed. "
            f"{REINSTALL}. The loader said: {error}"
        ) from error
    return importlib.import_module("torch_metal_ops._C")
