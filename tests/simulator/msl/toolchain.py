"""The compiler: clang 19 or later from PATH, otherwise the clang inside the `ziglang` package."""

from __future__ import annotations

import functools
import importlib.util
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.msl.errors import CompileError, Unavailable

HERE = Path(__file__).parent
INCLUDE = HERE / "include"
OLDEST_CLANG = 19

LANGUAGE = [
    "--target=x86_64-unknown-linux-gnu",
    "-march=x86-64-v3",
    "-std=gnu++20",
    "-nostdinc",
    "-nostdinc++",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-ffp-contract=on",
    # Kernels read packed weights through pointers to wider types.
    "-fno-strict-aliasing",
    # A half is rounded after every operation.
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Wno-everything",
]
MACHINE_CODE = ["-O2", "-fPIC", "-fno-asynchronous-unwind-tables", "-fvisibility=hidden"]
CHECKED = [
    # The passes that tell our callbacks of every access. Vectorised loops would make accesses that none was written
    # for, too wide for the callbacks.
    "-O1",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-fsanitize=thread",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
    "-mllvm",
    "-tsan-instrument-read-before-write=1",
    "-fsanitize=alignment",
    "-fsanitize-recover=alignment",
    "-gline-tables-only",
    "-gdwarf-4",
]


def kernel_flags(check: bool) -> list[str]:
    return [*LANGUAGE, *MACHINE_CODE, "-fpch-validate-input-files-content", *(CHECKED if check else [])]


@dataclass(frozen=True)
class Toolchain:
    compiler: tuple[str, ...]
    linker: tuple[str, ...]
    version: str

    def precompile(self, target: Path, check: bool) -> None:
        """The Metal library's header, read once: it takes a hundred times as long as a kernel."""
        header = INCLUDE / "metal_stdlib"
        self._run([*self.compiler, *kernel_flags(check), "-x", "c++-header", str(header), "-o", str(target)])

    def preprocess(self, source: str, name: str, include_dirs: Sequence[Path]) -> str:
        """`source` with its includes and macros expanded and with line markers; `name` is the file it comes from."""
        folders = [*([Path(name).parent] if name else []), INCLUDE, *include_dirs]
        marked = f'#include <metal_stdlib>\n# 1 "{name or "source.metal"}"\n{source}'
        flags = [*LANGUAGE, "-DMSL_MACROS_ONLY=1", *(f"-I{folder}" for folder in folders)]
        return self._run([*self.compiler, *flags, "-E", "-x", "c++", "-"], marked)

    def compile(self, source: Path, target: Path, header: Path, check: bool) -> None:
        flags = [*kernel_flags(check), "-include-pch", str(header)]
        self._run([*self.compiler, *flags, "-c", str(source), "-o", str(target)])

    def compile_runtime(self, source: Path, target: Path, check: bool) -> None:
        flags = [*LANGUAGE, *MACHINE_CODE, f"-DMSL_CHECK={int(check)}"]
        self._run([*self.compiler, *flags, "-c", str(source), "-o", str(target)])

    def link(self, objects: Sequence[Path], target: Path) -> None:
        self._run([*self.linker, "-shared", "-Bsymbolic", *map(str, objects), "-o", str(target)])

    @staticmethod
    def _run(command: list[str], text: str | None = None) -> str:
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.returncode:
            raise CompileError(done.stderr.strip() or f"{command[0]} ended with status {done.returncode}")
        return done.stdout


def _version(compiler: Sequence[str]) -> str:
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def _from_path() -> Toolchain | None:
    compiler, linker = shutil.which("clang"), shutil.which("ld.lld") or shutil.which("ld")
    if compiler is None or linker is None:
        return None
    version = _version([compiler])
    number = re.search(r"version (\d+)", version)
    if number is None or int(number[1]) < OLDEST_CLANG:
        return None
    return Toolchain((compiler,), (linker,), version)


def _from_ziglang() -> Toolchain | None:
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        return None
    # `zig clang` and `zig ld.lld` are the plain tools: unlike `zig c++` they build no runtime library first.
    zig = str(Path(package.origin).parent / "zig")
    return Toolchain((zig, "clang"), (zig, "ld.lld"), _version([zig, "clang"]))


@functools.cache
def toolchain() -> Toolchain:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unavailable("the Metal simulator runs on Linux on x86-64 only")
    found = _from_path() or _from_ziglang()
    if found is None:
        raise Unavailable(f"the Metal simulator needs clang {OLDEST_CLANG} or later. Run: pip install ziglang==0.17.0")
    return found
