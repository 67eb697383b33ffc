"""What Apple's compiler would reject, from public evidence, over source that the simulator may well run.

Two readings of the preprocessed source: `rules.py` and `kernels.py` look at its tokens, `frontend.py` has clang's
OpenCL C++ front end, whose address spaces are Metal's, compile it against `metal.h`. The target is Metal 3.1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from simulator.msl.errors import CompileError
from simulator.msl.strict.frontend import compile_errors
from simulator.msl.strict.kernels import Kernels
from simulator.msl.strict.rules import Rules
from simulator.msl.strict.source import Source, Violation
from simulator.msl.toolchain import toolchain

__all__ = ["Violation", "strict"]


def strict(
    source_or_path: str | os.PathLike[str], include_dirs: Sequence[str | os.PathLike[str]] = ()
) -> list[Violation]:
    """The rules that a Metal source breaks, by file and line; the arguments are those of `msl.compile`."""
    text = os.fspath(source_or_path)
    name = ""
    if "\n" not in text:
        name, text = text, Path(text).read_text()
    try:
        preprocessed = toolchain().preprocess(text, name, [Path(d) for d in include_dirs])
    except CompileError as error:
        return [_preprocessor(error)]
    source = Source(text, name or "source.metal", preprocessed)
    found = [*source.non_ascii(), *Rules(source).violations(), *Kernels(source).violations()]
    lines = {(v.file, v.line) for v in found}
    # What clang says of a line that a rule has named already adds nothing.
    found += [v for v in compile_errors(source) if (v.file, v.line) not in lines]
    return sorted(set(found), key=lambda v: (v.file, v.line, v.rule))


def _preprocessor(error: CompileError) -> Violation:
    first = re.search(r"(\S+):(\d+):\d+: (?:fatal )?error: (.*)", str(error))
    if first is None:
        raise error
    return Violation("include" if "file not found" in first[3] else "preprocessor", first[1], int(first[2]), first[3])
