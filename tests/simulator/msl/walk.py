"""A walk over the declarations and statements of Metal source, by its tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simulator.msl.declarations import Code
from simulator.msl.tokens import Token

CLASS_KEYS = {"struct", "class", "union"}
ACCESS = {"public", "private", "protected"}


@dataclass
class Scope:
    kind: str  # namespace, class, function, block
    start: int
    name: str = ""
    kernel: bool = False  # a function that is one


class Walker:
    """Calls `enter` before the brace of each scope and `statement` for each declaration or statement that ends in `;`.

    `self.start` is the index of the first token of what is being read.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.code = Code(tokens)
        self.partner, self.words = self.code.partner, self.code.words
        self.scopes = [Scope("namespace", -1)]
        self.start = 0

    def walk(self) -> None:
        i = 0
        while i < len(self.words):
            i = self._step(i)

    def enter(self, scope: Scope, brace: int) -> int | None:
        """The index to go on at, to skip the scope; None to walk it."""
        raise NotImplementedError

    def statement(self, end: int) -> None:
        raise NotImplementedError

    def _step(self, i: int) -> int:
        """Reads the token at i; the index to go on at."""
        word, kind = self.words[i], self.scopes[-1].kind
        if word == "{":
            return self._open(i)
        if word == "}":
            if len(self.scopes) > 1:
                self.scopes.pop()
            self.start = i + 1
        elif word == ";":
            if self.start < i:
                self.statement(i)
            self.start = i + 1
        elif word == "(" and i in self.partner:
            i = self.partner[i]
            if self.words[self.start] in ("for", "if", "while", "switch"):
                self.start = i + 1
        elif word in ("else", "do") or (word == ":" and kind == "class" and self.words[self.start] in ACCESS):
            self.start = i + 1
        return i + 1

    def _open(self, i: int) -> int:
        scope = self._classify(i)
        if scope is None:  # a braced initialiser or an enumeration
            return self.partner[i] + 1
        scope.kernel = scope.kind == "function" and self.is_kernel(i)
        after = self.enter(scope, i)
        if after is not None:
            self.start = after
            return after
        self.scopes.append(scope)
        self.start = i + 1
        return i + 1

    def _classify(self, i: int) -> Scope | None:
        words = self.words[self.start : i]
        if self.scopes[-1].kind in ("function", "block"):
            if words and words[0] in CLASS_KEYS and "(" not in words:
                return Scope("class", i, self._class_name(i))
            return Scope("block", i)
        if "namespace" in words:
            return Scope("namespace", i, "".join(words[words.index("namespace") + 1 :]))
        if words[:1] == ["extern"]:
            return Scope("namespace", i)
        if self.code.parameter_list(self.start, i) is not None:
            return Scope("function", i)
        if CLASS_KEYS & set(words) and "=" not in self.code.outside_templates(self.start, i):
            return Scope("class", i, self._class_name(i))
        return None

    def _class_name(self, brace: int) -> str:
        words = self.code.outside_templates(self.start, brace)
        key = next(i for i, word in enumerate(words) if word in CLASS_KEYS)
        return words[key + 1] if key + 1 < len(words) else ""

    def is_kernel(self, brace: int) -> bool:
        """Whether the function with its body (or its end) at this token is marked as a kernel."""
        return self.kernel_by_attribute(brace) or "kernel" in self.words[self.start : self._name_end(brace)]

    def kernel_by_attribute(self, brace: int) -> bool:
        attributes = self.code.attributes_in(self.start, brace)
        return any(re.match(r"(host_name.*, )?kernel\b", text) for text in attributes)

    def _name_end(self, brace: int) -> int:
        opening = self.code.parameter_list(self.start, brace)
        return brace if opening is None else opening
