"""Faults planted in the project's own kernels, one table a shader library. Check mode must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cases import Call
from simulator.msl import Fault


@dataclass(frozen=True)
class Mutation:
    """A launch of `kernel`, made by the call that `call` builds, with `new` in place of `old` in its source."""

    call: Callable[[], Call]
    kernel: str
    old: str  # text that the library's source has exactly once
    new: str
    fault: Fault
    why: str  # which mistake it stands for

    def __str__(self) -> str:
        return f"{self.kernel}: {self.why}"

    def plant(self, source: str) -> str:
        assert source.count(self.old) == 1, f"{source.count(self.old)} places, expected 1, have:\n{self.old}"
        return source.replace(self.old, self.new)
