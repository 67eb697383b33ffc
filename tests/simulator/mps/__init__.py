"""A simulated mps device for the torch of a Linux wheel. README.md, one folder up, says what it is and is not."""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import importlib.util
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

import torch

from simulator.mps import ops
from simulator.mps.build import build
from simulator.mps.launches import MAX_THREADS, Launch, LaunchError, Launches
from simulator.mps.shader_library import ShaderLibrary

__all__ = ["Launch", "LaunchError", "activate", "launched", "record", "set_max_threads"]

HERE = Path(__file__).parent
CORES = 8

_launches = Launches()
launched = _launches.launched
"""(library, kernel) of every launch of this process. A library is named after its .metal file or, failing that, is its
source."""


def activate(check: bool = False) -> None:
    """Makes `torch.device("mps")` work, with this project's ops on it.

    With `check`, every launch runs in check mode; a fault is raised as LaunchError where its results are waited for.
    """
    _launches.check = check
    _device()


def set_max_threads(count: int = MAX_THREADS) -> None:
    """The largest threadgroup that a kernel may be launched with: a GPU may allow less than 1024 threads."""
    _launches.max_threads = count


def record() -> AbstractContextManager[list[Launch]]:
    """The launches within, in order: `with record() as launches: ...`"""
    return _launches.record(_device().synchronize)


@functools.cache
def _device() -> ModuleType:
    device = _load("simulator_mps", build("mps", sorted((HERE / "csrc").glob("*.cpp"))))
    backend = device.backend()
    backend.compile = _launches.compile
    backend.names = _launches.names
    backend.kernel = _launches.kernel
    backend.run = _launches.run
    backend.max_threads = lambda kernel: _launches.max_threads
    backend.cores = CORES
    if not torch._C._mps_is_available():
        raise RuntimeError("simulator.activate() must come before anything asks torch whether there is an mps device")
    _tell_torch(device)
    ops.load()
    return device


def _load(name: str, path: Path) -> ModuleType:
    # Its symbols are to be found by the libraries that come later.
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _tell_torch(device: ModuleType) -> None:
    torch._C._has_mps = True
    torch._C._mps_get_name = lambda: "Simulated"
    torch._C._mps_get_core_count = lambda: CORES
    torch._C._mps_compileShader = functools.partial(ShaderLibrary, device)
    for cached in ("is_available", "is_macos_or_newer", "is_macos13_or_newer", "get_name", "get_core_count"):
        getattr(torch.backends.mps, cached).cache_clear()
    # Before torch's own, which makes the storage by a constructor that a Linux build does not offer for mps.
    torch.serialization.register_package(15, lambda storage: None, _load_storage)


def _load_storage(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    if not location.startswith("mps"):
        return None
    return torch.empty(0, dtype=torch.uint8).set_(storage).to("mps").untyped_storage()
