"""From preprocessed Metal source to C++ that means the same when all memory is one address space.

Only five things differ between the two languages, and only they are rewritten, so that line numbers stay:

- a floating literal without a suffix is a float;
- `[[attributes]]` are recorded and removed;
- `device`, `thread` and `threadgroup` vanish and `constant` becomes `const`. Overloads and specialisations that then
  are the same are kept once;
- a `threadgroup` variable becomes a reference into the group's memory;
- kernels become ordinary static functions; what a library offers under which name is listed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from simulator.msl.declarations import SPACES
from simulator.msl.errors import CompileError
from simulator.msl.tokens import Token, tokenise
from simulator.msl.walk import Scope, Walker

DOUBLE = re.compile(
    r"(0[xX][0-9a-fA-F.']+[pP][+-]?\d+|[\d']+\.[\d']*([eE][+-]?\d+)?|\.\d[\d']*([eE][+-]?\d+)?|\d[\d']*[eE][+-]?\d+)"
)


@dataclass(frozen=True)
class KernelFunction:
    name: str  # qualified
    parameters: tuple[str | None, ...]  # the attribute of each, without brackets


@dataclass(frozen=True)
class Entry:
    function: str  # C++: what to call, with its template arguments
    kernel: KernelFunction


@dataclass
class Module:
    text: str = ""
    entries: dict[str, Entry] = field(default_factory=dict)
    constants: dict[int, str] = field(default_factory=dict)  # index -> type of a function constant


def translate(preprocessed: str) -> Module:
    return _Translator(tokenise(preprocessed)).run()


class _Translator(Walker):
    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self.kernels: list[KernelFunction] = []
        self.seen: set[tuple[object, ...]] = set()
        self.variables = 0
        self.module = Module()

    def run(self) -> Module:
        self.walk()
        for token in self.code.tokens:
            if token.text in SPACES:
                token.text = "const" if token.text == "constant" else ""
            elif token.text == "kernel":
                token.text = "static"
            elif token.kind == "number" and DOUBLE.fullmatch(token.text):
                token.text += "f"
        self.module.text = "".join(t.text for t in self.tokens)
        return self.module

    def enter(self, scope: Scope, brace: int) -> int | None:
        if scope.kind in ("class", "function") and self.scopes[-1].kind in ("namespace", "class"):
            key = self._class_key(brace) if scope.kind == "class" else self._function_key(brace)
            if key in self.seen and SPACES & set(self.words[self.start : brace]):
                return self._remove_definition(brace)
            self.seen.add(key)
            if scope.kernel:
                self._note_kernel(brace)
        return None

    def _remove_definition(self, brace: int) -> int:
        end = self.partner[brace] + 1
        if end < len(self.words) and self.words[end] == ";":
            end += 1
        self.code.erase(self.start, end)
        return end

    # -- declarations ----------------------------------------------------------------------------------------------

    def _class_key(self, brace: int) -> tuple[object, ...]:
        return (self.scopes[-1].start, "class", *self.code.plain(self.start, brace))

    def _function_key(self, brace: int) -> tuple[object, ...]:
        opening = self.code.parameter_list(self.start, brace)
        assert opening is not None
        parameters = tuple(self.code.parameter_type(*part) for part in self.code.parameters(opening))
        closing = self.partner[opening]
        qualifiers = range(closing + 1, min(closing + 3, brace))
        if self.words[opening - 1] == self.scopes[-1].name:  # a constructor, of an object in constant memory
            for i in qualifiers:
                if self.words[i] == "constant":
                    self.words[i] = self.code.tokens[i].text = "device"
        qualified = {"const", "constant"} & {self.words[i] for i in qualifiers}
        return (self.scopes[-1].start, tuple(self.code.plain(self.start, opening)), parameters, bool(qualified))

    # -- kernels ---------------------------------------------------------------------------------------------------

    def _note_kernel(self, brace: int) -> None:
        attributes = self.code.attributes_in(self.start, brace)
        opening = self.code.parameter_list(self.start, brace)
        assert opening is not None
        name = self._qualified(self.words[opening - 1])
        parameters = tuple(self._parameter_attribute(*part) for part in self.code.parameters(opening))
        kernel = KernelFunction(name, parameters)
        self.kernels.append(kernel)
        if self.kernel_by_attribute(brace):
            first = self.code.tokens[self.code.after_template_headers(self.start)]
            first.text = f"static {first.text}"
        if self.words[self.start] != "template":
            host_name = _host_name(attributes) or self.words[opening - 1]
            self.module.entries[host_name] = Entry(name, kernel)

    def _parameter_attribute(self, start: int, end: int) -> str | None:
        found = self.code.attributes_in(start + 1, end)
        return found[-1] if found else None

    def _qualified(self, name: str) -> str:
        return "::".join([*(s.name for s in self.scopes if s.kind == "namespace" and s.name), name])

    def statement(self, i: int) -> None:
        kind = self.scopes[-1].kind
        if kind == "namespace":
            attributes = self.code.attributes_in(self.start, i)
            if self.words[self.start] == "template" and self.words[self.start + 1] != "<":
                self._instantiation(i, attributes)
            for text in attributes:
                if index := re.match(r"function_constant \( (\d+) \)", text):
                    self._function_constant(i, int(index[1]))
        elif kind in ("function", "block"):
            self._threadgroup_variables(i)

    def _instantiation(self, end: int, attributes: list[str]) -> None:
        """`template [[host_name("n")]] kernel void f<T>(...)` and the shorter forms with decltype or an alias."""
        host_name = _host_name(attributes)
        if host_name is None:
            return
        k = self.start + 1
        while self.words[k] in ("kernel", "inline", "static"):
            k += 1
        k = self.partner[k + 1] + 1 if self.words[k] == "decltype" else k + 1
        function = self._function_id(k, end)
        self.code.erase(self.start, end + 1)
        self.module.entries[host_name] = Entry(function, self._kernel(function, host_name))

    def _function_id(self, k: int, end: int) -> str:
        words: list[str] = []
        while k < end and self.words[k] != "(":
            after = self.code.after_template_list(k, certain=True) if self.words[k] == "<" else k + 1
            words += [w for w in self.words[k:after] if w not in SPACES]
            k = after
        return " ".join(words)

    def _kernel(self, function: str, host_name: str) -> KernelFunction:
        name = re.sub(r"\s", "", function.split("<")[0]).lstrip(":")
        last = name.split("::")[-1]
        for matches in (lambda k: k.name == name, lambda k: k.name.split("::")[-1] == last):
            for kernel in self.kernels:
                if matches(kernel):
                    return kernel
        raise CompileError(f'host_name("{host_name}") instantiates {name}, which is not a kernel')

    def _function_constant(self, end: int, index: int) -> None:
        """A constant whose value arrives with the kernel's name, as a macro."""
        name = self.words[end - 1]
        dropped = SPACES | {"const", "constexpr", "static", "inline"}
        type_ = " ".join(w for w in self.words[self.start : end - 1] if w not in dropped)
        self.code.erase(self.start, end)
        self.code.tokens[self.start].text = (
            f"static constexpr {type_} {name} = {type_}(MSL_CONSTANT_{index}), "
            f"defined_{name} = {type_}(MSL_DEFINED_{index})"
        )
        self.module.constants[index] = type_

    # -- threadgroup variables -------------------------------------------------------------------------------------

    def _threadgroup_variables(self, end: int) -> None:
        found = self.code.threadgroup_variables(self.start, end)
        if found is None:
            return
        type_, names = found
        declarations = []
        for name, dimensions in names:
            self.variables += 1
            declarations.append(
                f"typedef {type_} {name}_in_group{dimensions}; "
                f"auto& {name} = ::msl::threadgroup_variable<{name}_in_group, {self.variables}>()"
            )
        self.code.erase(self.start, end)
        self.code.tokens[self.start].text = "; ".join(declarations)


def _host_name(attributes: list[str]) -> str | None:
    for text in attributes:
        if found := re.search(r'host_name \( ((?:"[^"]*" ?)+)', text):
            return "".join(re.findall(r'"([^"]*)"', found[1]))
    return None
