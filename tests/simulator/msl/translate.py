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

from simulator.msl.declarations import SPACES, Code
from simulator.msl.errors import CompileError
from simulator.msl.tokens import Token, tokenise

CLASS_KEYS = {"struct", "class", "union"}
ACCESS = {"public", "private", "protected"}
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


@dataclass
class _Scope:
    kind: str  # namespace, class, function, block
    start: int
    name: str = ""


class _Translator:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.code = Code(tokens)
        self.partner, self.words = self.code.partner, self.code.words
        self.scopes = [_Scope("namespace", -1)]
        self.start = 0  # of the declaration or statement being read
        self.kernels: list[KernelFunction] = []
        self.seen: set[tuple[object, ...]] = set()
        self.variables = 0
        self.module = Module()

    def run(self) -> Module:
        i = 0
        while i < len(self.words):
            i = self._step(i)
        for token in self.code.tokens:
            if token.text in SPACES:
                token.text = "const" if token.text == "constant" else ""
            elif token.text == "kernel":
                token.text = "static"
            elif token.kind == "number" and DOUBLE.fullmatch(token.text):
                token.text += "f"
        self.module.text = "".join(t.text for t in self.tokens)
        return self.module

    # -- the walk --------------------------------------------------------------------------------------------------

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
            self._end_statement(i)
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
        if scope.kind in ("class", "function") and self.scopes[-1].kind in ("namespace", "class"):
            key = self._class_key(i) if scope.kind == "class" else self._function_key(i)
            if key in self.seen and SPACES & set(self.words[self.start : i]):
                return self._remove_definition(i)
            self.seen.add(key)
            if scope.kind == "function":
                self._note_kernel(i)
        self.scopes.append(scope)
        self.start = i + 1
        return i + 1

    def _classify(self, i: int) -> _Scope | None:
        words = self.words[self.start : i]
        if self.scopes[-1].kind in ("function", "block"):
            if words and words[0] in CLASS_KEYS and "(" not in words:
                return _Scope("class", i, self._class_name(i))
            return _Scope("block", i)
        if "namespace" in words:
            return _Scope("namespace", i, "".join(words[words.index("namespace") + 1 :]))
        if words[:1] == ["extern"]:
            return _Scope("namespace", i)
        if self.code.parameter_list(self.start, i) is not None:
            return _Scope("function", i)
        if CLASS_KEYS & set(words) and "=" not in self.code.outside_templates(self.start, i):
            return _Scope("class", i, self._class_name(i))
        return None

    def _class_name(self, brace: int) -> str:
        words = self.code.outside_templates(self.start, brace)
        key = next(i for i, word in enumerate(words) if word in CLASS_KEYS)
        return words[key + 1] if key + 1 < len(words) else ""

    def _remove_definition(self, brace: int) -> int:
        end = self.partner[brace] + 1
        if end < len(self.words) and self.words[end] == ";":
            end += 1
        self.code.erase(self.start, end)
        self.start = end
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
        by_attribute = any(re.match(r"(host_name.*, )?kernel\b", text) for text in attributes)
        if not by_attribute and "kernel" not in self.words[self.start : opening]:
            return
        name = self._qualified(self.words[opening - 1])
        parameters = tuple(self._parameter_attribute(*part) for part in self.code.parameters(opening))
        kernel = KernelFunction(name, parameters)
        self.kernels.append(kernel)
        if by_attribute:
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

    def _end_statement(self, i: int) -> None:
        kind = self.scopes[-1].kind
        if self.start >= i:
            return
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
        """`threadgroup T a[n], b;`. A pointer into threadgroup memory is none: it has a `*` before its name."""
        if "threadgroup" not in self.words[self.start : min(self.start + 8, end)]:
            return
        k, type_ = self.start, []
        while k < end:
            word = self.words[k]
            if word in ("=", "*", "&", "&&", "(", "return"):
                return
            if word == "alignas":
                k = self.partner[k + 1] + 1
            elif word == "<":
                after = self.code.after_template_list(k)
                type_ += self.words[k:after]
                k = after
            elif type_ and self.code.is_name(k) and self.words[k + 1] in ("[", ";", ","):
                break
            else:
                if word not in SPACES and word not in ("const", "volatile"):
                    type_.append(word)
                k += 1
        if k >= end or not type_:
            return
        declarations = []
        while k < end:
            name, dimensions = self.words[k], ""
            k += 1
            while self.words[k] == "[":
                dimensions += " ".join(self.words[k : self.partner[k] + 1])
                k = self.partner[k] + 1
            if self.words[k] not in (",", ";"):
                raise CompileError(f"the threadgroup variable `{name}` has an initialiser")
            k += 1
            self.variables += 1
            declarations.append(
                f"typedef {' '.join(type_)} {name}_in_group{dimensions}; "
                f"auto& {name} = ::msl::threadgroup_variable<{name}_in_group, {self.variables}>()"
            )
        self.code.erase(self.start, end)
        self.code.tokens[self.start].text = "; ".join(declarations)


def _host_name(attributes: list[str]) -> str | None:
    for text in attributes:
        if found := re.search(r'host_name \( ((?:"[^"]*" ?)+)', text):
            return "".join(re.findall(r'"([^"]*)"', found[1]))
    return None
