"""From translated source to a shared library, through the cache."""

from __future__ import annotations

import functools
from pathlib import Path

from simulator.msl.cache import cached
from simulator.msl.toolchain import HERE, toolchain


def build(source: str, check: bool) -> Path:
    """The shared library of one kernel."""
    return cached("kernel.so", source, check, make=functools.partial(_build, source, check))


def _build(source: str, check: bool, target: Path) -> None:
    code, kernel = target.with_suffix(".cpp"), target.with_suffix(".o")
    code.write_text(source)
    toolchain().compile(code, kernel, _header(check), check)
    names = ["scheduler", "atomics", *(["check"] if check else [])]
    toolchain().link([kernel, *(_runtime(name, check) for name in names)], target)


def _header(check: bool) -> Path:
    # The precompiled form records where its text lies, so that another checkout needs its own.
    return cached("metal.pch", str(HERE), check, make=lambda path: toolchain().precompile(path, check))


def _runtime(name: str, check: bool) -> Path:
    source = HERE / "runtime" / f"{name}.cpp"
    return cached(f"{name}.o", check, make=lambda path: toolchain().compile_runtime(source, path, check))
