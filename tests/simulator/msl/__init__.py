"""The Metal shading language on a CPU.

Metal source is compiled, unmodified, by a stock clang and executed with Metal's execution model:

    library = msl.compile(source_or_path)
    run = library.kernel("add").run({0: a, 1: b, 2: out}, threads=(n, 1, 1), group=(32, 1, 1))

README.md, one folder up, says how and what for.
"""

from simulator.msl.abi import Fault
from simulator.msl.errors import CompileError, Unavailable
from simulator.msl.library import Kernel, Library, compile
from simulator.msl.results import Cost, Finding, Run, Traffic
from simulator.msl.strict import Violation, strict

__all__ = [
    "CompileError",
    "Cost",
    "Fault",
    "Finding",
    "Kernel",
    "Library",
    "Run",
    "Traffic",
    "Unavailable",
    "Violation",
    "compile",
    "strict",
]
