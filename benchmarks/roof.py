"""What this machine can do at most, measured: bytes read and float32 operations a second, for a number of threads.

probe.cpp measures, rather than torch.sum and torch.mm: a floor that is too easy to reach would flatter us, and MKL's
product is some 20 % from the peak on processors that are not Intel's. Machines with matrix units or bfloat16 products
have a higher peak for these than the FMA peak that is the floor here.
"""

import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

_READ_BYTES = 512 << 20
_STEPS = 10_000_000
_REPEATS = 5


@dataclass(frozen=True)
class Roof:
    bytes_per_second: float
    flops_per_second: float

    def seconds(self, bytes: int, flops: int) -> float:
        return max(bytes / self.bytes_per_second, flops / self.flops_per_second)


@cache
def _probe() -> ctypes.CDLL:
    """The compiled probe. The extension was built here, so a compiler is at hand."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "probe.so"
        command = [os.environ.get("CXX", "c++"), "-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC"]
        subprocess.run([*command, Path(__file__).with_name("probe.cpp"), "-o", library], check=True)
        probe = ctypes.CDLL(str(library))
    probe.read_memory.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    probe.read_memory.restype = ctypes.c_longlong
    probe.multiply_add.argtypes = [ctypes.c_size_t, ctypes.c_float]
    probe.multiply_add.restype = ctypes.c_double
    probe.flops_per_step.restype = ctypes.c_size_t
    return probe


def _seconds(threads: int, work: Callable[[int], object]) -> float:
    """The least time that ``work(0) ... work(threads - 1)`` took side by side (ctypes lets go of the GIL).

    In CPU time of the slowest thread: waiting for a processor that others use is no property of the machine.
    """

    def timed(i: int) -> float:
        start = time.thread_time()
        work(i)
        return time.thread_time() - start

    with ThreadPoolExecutor(threads) as pool:
        return min(max(pool.map(timed, range(threads))) for _ in range(_REPEATS))


def measure_roof(threads: int) -> Roof:
    probe = _probe()
    data = torch.ones(_READ_BYTES, dtype=torch.uint8)
    share = _READ_BYTES // threads // 256 * 256
    reading = _seconds(threads, lambda i: probe.read_memory(data.data_ptr() + i * share, share))
    adding = _seconds(threads, lambda i: probe.multiply_add(_STEPS, 0.5))
    return Roof(threads * share / reading, threads * _STEPS * probe.flops_per_step() / adding)
