"""What `compile` returns: a library of kernels, each built when it is asked for."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from simulator.msl.abi import Argument
from simulator.msl.build import build
from simulator.msl.errors import CompileError
from simulator.msl.launch import Buffer, launch
from simulator.msl.results import Run
from simulator.msl.toolchain import toolchain
from simulator.msl.translate import Entry, Module, translate

INDEXED = re.compile(r"(buffer|threadgroup) \( (.+?) \)(.*)")


def compile(
    source_or_path: str | os.PathLike[str], include_dirs: Sequence[str | os.PathLike[str]] = (), check: bool = False
) -> Library:
    """The kernels of a Metal source: a path, or the text itself (a string of more than one line).

    Each kernel is compiled when `Library.kernel` asks for it. With `check`, its runs report faults and count memory.
    """
    text = os.fspath(source_or_path)
    name = ""
    if "\n" not in text:
        name, text = text, Path(text).read_text()
    preprocessed = toolchain().preprocess(text, name, [Path(d) for d in include_dirs])
    return Library(translate(preprocessed), check)


class Library:
    def __init__(self, module: Module, check: bool) -> None:
        self._module = module
        self._check = check
        self.names = tuple(module.entries)

    def kernel(self, name: str, constants: Mapping[int, bool | int] | None = None) -> Kernel:
        """The kernel of that host name; `constants` are the values of function constants, by index."""
        if name not in self._module.entries:
            raise KeyError(f"no kernel named {name}; the library has {', '.join(self.names) or 'none'}")
        source = _source(self._module, self._module.entries[name], dict(constants or {}))
        return Kernel(name, build(source, self._check), self._check)


class Kernel:
    """One compiled kernel."""

    def __init__(self, name: str, shared: Path, check: bool) -> None:
        self.name = name
        self.check = check
        self.path = shared
        self._code = _load(shared)
        count = ctypes.c_uint32.in_dll(self._code, "msl_argument_count").value
        self.arguments = tuple((Argument * count).in_dll(self._code, "msl_arguments"))

    def run(
        self,
        arguments: Mapping[int, Buffer],
        *,
        threads: tuple[int, int, int] | None = None,
        groups: tuple[int, int, int] | None = None,
        group: tuple[int, int, int],
        threadgroup_memory: Mapping[int, int] | None = None,
        uninitialised: Sequence[int] = (),
        seed: int = 0,
    ) -> Run:
        """Executes the kernel over `threads` threads, or `groups` threadgroups, of size `group`.

        Args:
            arguments: a tensor on the CPU, bound in place, or bytes, for each buffer index.
            threadgroup_memory: the size in bytes of each `[[threadgroup(n)]]` argument.
            uninitialised: buffers whose bytes the kernel must write before it reads them (check mode).
            seed: other than 0, threads and threadgroups run in another order.
        """
        if (threads is None) == (groups is None):
            raise ValueError(f"{self.name}: give either threads or groups")
        grid = threads or tuple(count * size for count, size in zip(groups or (), group, strict=True))
        return launch(self, self._code, dict(arguments), grid, group, threadgroup_memory or {}, uninitialised, seed)


@functools.cache
def _load(shared: Path) -> ctypes.CDLL:
    ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)  # kernels are linked with nothing
    return ctypes.CDLL(str(shared))


def _source(module: Module, entry: Entry, constants: dict[int, bool | int]) -> str:
    unknown = constants.keys() - module.constants.keys()
    if unknown:
        raise KeyError(f"the library has no function constant {sorted(unknown)[0]}")
    values = "".join(
        f"#define MSL_CONSTANT_{i} {int(constants.get(i, 0))}\n#define MSL_DEFINED_{i} {int(i in constants)}\n"
        for i in module.constants
    )
    arguments = ", ".join(_argument(text, entry) for text in _attributes(entry))
    return (
        f'{values}# 1 "metal"\n{module.text}\n# 1 "entry"\n'
        f'#define MSL_EXPORT extern "C" __attribute__((visibility("default")))\n'
        f"MSL_EXPORT const msl::Argument msl_arguments[] = {{ {arguments} }};\n"
        f"MSL_EXPORT const msl::u32 msl_argument_count = {len(entry.kernel.parameters)};\n"
        f'extern "C" void msl_kernel() {{ msl::call(&{entry.function}, msl_arguments); }}\n'
    )


def _attributes(entry: Entry) -> list[str]:
    """The attribute of each parameter. A buffer without one takes the next free index."""
    given = entry.kernel.parameters
    used = {int(m[1]) for text in given if text and (m := re.match(r"buffer \( (\d+) \)", text))}
    free = (i for i in range(31) if i not in used)
    return [text if text is not None else f"buffer ( {next(free)} )" for text in given]


def _argument(text: str, entry: Entry) -> str:
    if indexed := INDEXED.match(text):
        optional = int("function_constant" in indexed[3])
        return f"{{msl::Parameter::{indexed[1]}, {indexed[2]}, {optional}}}"
    if not re.fullmatch(r"\w+", text):
        raise CompileError(f"{entry.kernel.name}: the simulator does not know the attribute [[{text}]]")
    return f"{{msl::Parameter::{text}, 0, 0}}"
