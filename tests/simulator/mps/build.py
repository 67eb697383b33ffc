"""Compiles C++ against torch: a file at a time, in parallel, and only what has changed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from simulator.msl.cache import stored
from simulator.msl.errors import Unavailable

TORCH = Path(torch.__file__).parent
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
FLAGS = [
    "-std=c++20",
    "-O1",
    "-fPIC",
    "-w",
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    f"-I{TORCH / 'include'}",
    f"-I{TORCH / 'include' / 'torch' / 'csrc' / 'api' / 'include'}",
    f"-I{sysconfig.get_path('include')}",
]


def build(name: str, sources: Sequence[Path], flags: Sequence[str] = ()) -> Path:
    """The shared library of C++ `sources`."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise Unavailable(f"the simulated mps device needs a C++ compiler, got no {compiler} on PATH")
    command = [compiler, *FLAGS, *flags]

    def compiled(source: Path) -> Path:
        def make(target: Path) -> None:
            _run([*command, "-c", "-x", "c++", str(source), "-o", str(target)])

        return stored(f"{source.stem}.o", torch.__version__, command, _texts(source), make=make)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sources))

    def link(target: Path) -> None:
        libraries = [f"-L{TORCH / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{TORCH / 'lib'}"]
        _run([compiler, "-shared", *map(str, objects), *libraries, "-o", str(target)])

    return stored(f"{name}.so", [path.name for path in objects], make=link)


def _texts(source: Path) -> list[tuple[str, bytes]]:
    """The file and the headers that it includes from folders of its own."""
    found: dict[Path, bytes] = {}

    def add(path: Path) -> None:
        if path in found or not path.is_file():
            return
        found[path] = path.read_bytes()
        for name in INCLUDE.findall(found[path]):
            add((path.parent / name.decode()).resolve())

    add(source.resolve())
    return [(path.name, text) for path, text in found.items()]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
