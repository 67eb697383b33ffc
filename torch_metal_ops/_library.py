"""Loads the compiled extension, and explains itself when that fails."""

import ctypes
import importlib
import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType

import torch

_REINSTALL = (
    "Reinstall it in its source folder, with the torch it is to run with: "
    "pip install --no-build-isolation --no-deps --force-reinstall ."
)

# ExecuTorch defines these two with the same schemas, and fails where they are defined already; we look first. So its
# modules are imported before our extension is loaded.
_EXECUTORCH_OPS = ("gather_qmv", "gated_delta_rule")


def _failure(text: str) -> ImportError:
    # With a name, `python -m torch_metal_ops` prints the sentence instead of a traceback.
    return ImportError(f"torch_metal_ops: {text}", name="torch_metal_ops")


def _minor_release(version: str) -> tuple[str, ...]:
    return tuple(version.split("+")[0].split(".")[:2])


def _built_with() -> str:
    try:
        from torch_metal_ops._build import BUILT_WITH_TORCH
    except ImportError as error:
        raise _failure(f"its extension must be built, got no build record (_build.py). {_REINSTALL}") from error
    return BUILT_WITH_TORCH


def _extension_path(built: str) -> str:
    spec = importlib.util.find_spec("torch_metal_ops._C")
    if spec is None or spec.origin is None:
        folder = Path(__file__).parent
        wanted = f"_C{importlib.machinery.EXTENSION_SUFFIXES[0]}"
        found = ", ".join(sorted(path.name for path in folder.glob("_C.*"))) or "no extension"
        raise _failure(f"its extension, built for torch {built}, must be {wanted}, got {found}. {_REINSTALL}")
    return spec.origin


def _import_executorch_ops() -> None:
    for op in _EXECUTORCH_OPS:
        if hasattr(torch.ops.metal, op):
            continue
        try:
            importlib.import_module(f"executorch.backends.apple.metal.ops.{op}")
        except Exception:  # absent, without this op, or broken: not for us to report
            continue


def _replace_fake(op: str) -> None:
    """Trace ``op`` by our Meta kernel, which a fake of another package would otherwise go before."""
    meta = torch.library.get_kernel(f"metal::{op}", "Meta")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
    torch.library.register_fake(f"metal::{op}", lambda *args: meta.call_boxed(keys, *args), allow_override=True)


def load() -> ModuleType:
    """Load the extension with its symbols visible to the libraries that AOTInductor packages bring."""
    built, installed = _built_with(), torch.__version__
    if _minor_release(built) != _minor_release(installed):
        raise _failure(f"its extension was built for torch {built}, got torch {installed}. {_REINSTALL}")
    path = _extension_path(built)
    _import_executorch_ops()
    defined = [op for op in _EXECUTORCH_OPS if hasattr(torch.ops.metal, op)]
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        module = importlib.import_module("torch_metal_ops._C")
    except OSError as error:
        raise _failure(
            f"its extension was built for torch {built} and could not be loaded with torch {installed}, got {error}. "
            f"{_REINSTALL}"
        ) from error
    except ImportError as error:  # another schema under one of our names
        raise _failure(str(error)) from error
    for op in defined:
        _replace_fake(op)
    return module
