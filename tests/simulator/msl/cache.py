"""Compiled code, kept between runs in a folder of its own and found by the content of everything it was made from."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from simulator.msl.toolchain import CHECKED, HERE, LANGUAGE, MACHINE_CODE, toolchain


@functools.cache
def folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for candidate in (base, Path(tempfile.gettempdir())):
        path = candidate / "torch-metal-ops-simulator"
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                return path
        except OSError:
            continue
    raise OSError("the Metal simulator found no folder that it can write to")


@functools.cache
def _environment() -> str:
    """What every compiled file depends on: the compiler, its flags and the simulator's own C++."""
    digest = hashlib.sha256(repr((toolchain().version, LANGUAGE, MACHINE_CODE, CHECKED)).encode())
    for path in sorted([*(HERE / "include").rglob("*"), *(HERE / "runtime").rglob("*")]):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def cached(name: str, *content: object, make: Callable[[Path], None]) -> Path:
    """A compiled kernel or a part of one."""
    return stored(name, _environment(), *content, make=make)


def stored(name: str, *content: object, make: Callable[[Path], None]) -> Path:
    """The file that `make(path)` writes from `content`, made now if it is not there."""
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:32]
    stem, _, suffix = name.partition(".")
    target = folder() / f"{stem}-{digest}.{suffix}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder()) as work:
            path = Path(work) / name
            make(path)
            path.replace(target)  # at once, so that two test processes can share the folder
    return target
