"""Kernel functions: their parameters, their attributes and the names they are found by."""

from __future__ import annotations

import itertools
import re
from collections import Counter

from simulator.msl.declarations import SPACES
from simulator.msl.strict.source import Source, Violation
from simulator.msl.walk import Scope, Walker

RULE = "kernel"
LIMIT = {"buffer": 31, "threadgroup": 31}
SCALAR = {"ushort", "uint", "uint16_t", "uint32_t"}
POSITION = {*SCALAR, *(f"{t}{n}" for t in ("ushort", "uint") for n in (2, 3))}
# By attribute: whether it can be a vector.
ATTRIBUTES = {
    "thread_position_in_grid": True,
    "thread_position_in_threadgroup": True,
    "threadgroup_position_in_grid": True,
    "threads_per_grid": True,
    "threadgroups_per_grid": True,
    "threads_per_threadgroup": True,
    "dispatch_threads_per_threadgroup": True,
    "thread_index_in_threadgroup": False,
    "thread_index_in_simdgroup": False,
    "thread_index_in_quadgroup": False,
    "simdgroup_index_in_threadgroup": False,
    "quadgroup_index_in_threadgroup": False,
    "simdgroups_per_threadgroup": False,
    "quadgroups_per_threadgroup": False,
    "dispatch_simdgroups_per_threadgroup": False,
    "threads_per_simdgroup": False,
    "thread_execution_width": False,
}
INDEXED = re.compile(r"(buffer|threadgroup) \( (.+?) \)")


class Kernels(Walker):
    def __init__(self, source: Source) -> None:
        super().__init__(source.tokens())
        self.source = source
        self.found: list[Violation] = []
        self.names: Counter[str] = Counter()
        self.functions: set[str] = set()  # the kernels

    def violations(self) -> list[Violation]:
        self.walk()
        return self.found

    def add(self, i: int, sentence: str) -> None:
        self.found.append(self.source.violation(self.code.tokens[i], RULE, sentence))

    def enter(self, scope: Scope, brace: int) -> None:
        if not scope.kernel:
            return
        opening = self.code.parameter_list(self.start, brace)
        assert opening is not None
        name = self.words[opening - 1]
        self.functions.add(name)
        self._host_name(brace)
        if self.scopes[-1].kind == "class":
            self.add(opening, f"{name} is a member function; a kernel cannot be one")
        if self.words[opening - 2] != "void":
            self.add(opening, f"{name} returns a value; a kernel returns void")
        self._parameters(name, opening)

    def statement(self, end: int) -> None:
        if self.scopes[-1].kind != "namespace":
            return
        if not self._host_name(end) or self.words[self.start] != "template":
            return
        words = self.words[self.start + 1 : end]
        head = words[: words.index("(")] if "(" in words and words[0] != "decltype" else words
        called = [w for w, after in itertools.pairwise(head) if after == "<"]
        if called and not self.functions & set(called):
            self.add(self.start, f"host_name is for kernels; {called[-1]} is none")

    def _host_name(self, end: int) -> bool:
        text = " ".join(self.code.attributes_in(self.start, end))
        found = re.search(r'host_name \( ((?:"[^"]*" ?)+)', text)
        if found is None:
            return False
        name = "".join(re.findall(r'"([^"]*)"', found[1]))
        self.names[name] += 1
        if self.names[name] == 2:
            self.add(self.start, f"two kernels are called {name}")
        return True

    # -- parameters ------------------------------------------------------------------------------------------------

    def _parameters(self, kernel: str, opening: int) -> None:
        taken: Counter[tuple[str, int]] = Counter()
        implicit = 0
        for start, end in self.code.parameters(opening):
            words = self.words[start:end]
            name = words[-1] if words[-1].isidentifier() else words[0]
            place = f"{kernel}: parameter {name}"
            attributes = self.code.attributes_in(start + 1, end)
            if words[0] == ".":
                self.add(start, f"{kernel} is variadic; a kernel cannot be")
            elif not attributes:
                implicit += 1
                self._buffer(start, words, place, "device", "constant")
            elif indexed := INDEXED.match(attributes[-1]):
                kind = indexed[1]
                spaces = ("device", "constant") if kind == "buffer" else ("threadgroup",)
                self._buffer(start, words, place, *spaces)
                if indexed[2].lstrip("-").replace(" ", "").isdigit():
                    self._index(start, place, kind, int(indexed[2].replace(" ", "")), taken)
            elif not re.match(r"texture|sampler", attributes[-1]):
                self._position(start, words, place, attributes[-1])
        buffers = implicit + len([key for key in taken if key[0] == "buffer"])
        if implicit and buffers > LIMIT["buffer"]:
            self.add(opening, f"{kernel} has {buffers} buffers; there are {LIMIT['buffer']}")

    def _buffer(self, i: int, words: list[str], place: str, *spaces: str) -> None:
        written = [w for w in words if w in SPACES]
        if not {"*", "&"} & set(words):
            if len(words) > 1:
                self.add(i, f"{place} is a value without an attribute of a value; take it by constant reference")
        elif written and written[0] not in spaces:
            self.add(i, f"{place} is in {written[0]} memory, not in {' or '.join(spaces)}")

    def _index(self, i: int, place: str, kind: str, index: int, taken: Counter[tuple[str, int]]) -> None:
        taken[kind, index] += 1
        if not 0 <= index < LIMIT[kind]:
            self.add(i, f"{place}: {kind} index {index} is not between 0 and {LIMIT[kind] - 1}")
        elif taken[kind, index] > 1:
            self.add(i, f"{place}: {kind} index {index} is taken")

    def _position(self, i: int, words: list[str], place: str, attribute: str) -> None:
        type_ = [w for w in words[:-1] if w not in ("const", "constant", "thread")]
        if attribute not in ATTRIBUTES:
            self.add(i, f"{place}: no attribute [[{attribute}]] in a kernel")
        elif {"*", "&"} & set(words):
            self.add(i, f"{place}: [[{attribute}]] is passed by value")
        elif len(type_) == 1 and type_[0] not in (POSITION if ATTRIBUTES[attribute] else SCALAR):
            self.add(i, f"{place}: [[{attribute}]] cannot be of type {type_[0]}")
