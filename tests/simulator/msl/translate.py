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

from simulator.msl.errors import CompileError
from simulator.msl.tokens import OPENING, Token, brackets, tokenise

SPACES = {"device", "constant", "thread", "threadgroup"}
CLASS_KEYS = {"struct", "class", "union"}
ACCESS = {"public", "private", "protected"}
NOT_A_NAME = {"decltype", "alignas", "noexcept", "requires", "__attribute__", "sizeof", "static_assert"}


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
        self.attributes: dict[int, list[str]] = {}  # index in `code` -> attributes just before it
        self.code = self._without_attributes([t for t in tokens if t.kind not in ("space", "marker")])
        self.partner = brackets(self.code)
        self.words = [t.text for t in self.code]  # as written: `code` itself is rewritten on the way
        self.scopes = [_Scope("namespace", -1)]
        self.start = 0  # of the declaration or statement being read
        self.kernels: list[KernelFunction] = []
        self.seen: set[tuple[object, ...]] = set()
        self.variables = 0
        self.module = Module()

    def run(self) -> Module:
        i = 0
        while i < len(self.code):
            i = self._step(i)
        for token in self.code:
            if token.text in SPACES:
                token.text = "const" if token.text == "constant" else ""
            elif token.text == "kernel":
                token.text = "static"
            elif token.kind == "number" and DOUBLE.fullmatch(token.text):
                token.text += "f"
        self.module.text = "".join(t.text for t in self.tokens)
        return self.module

    # -- attributes ------------------------------------------------------------------------------------------------

    def _without_attributes(self, code: list[Token]) -> list[Token]:
        kept: list[Token] = []
        partner = brackets(code)
        i = 0
        while i < len(code):
            is_attribute = (
                code[i].text == "["
                and i + 1 < len(code)
                and code[i + 1].text == "["
                and partner.get(i + 1) == partner.get(i, -1) - 1
            )
            if not is_attribute:
                kept.append(code[i])
                i += 1
                continue
            end = partner[i]
            text = " ".join(t.text for t in code[i + 2 : end - 1])
            self.attributes.setdefault(len(kept), []).append(text)
            for token in code[i : end + 1]:
                token.text = ""
            i = end + 1
        return kept

    def _attributes(self, start: int, end: int) -> list[str]:
        """Those before a token of [start, end]."""
        return [text for i in range(start, end + 1) for text in self.attributes.get(i, [])]

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
        if self._parameter_list(self.start, i) is not None:
            return _Scope("function", i)
        if CLASS_KEYS & set(words) and "=" not in self._outside_templates(self.start, i):
            return _Scope("class", i, self._class_name(i))
        return None

    def _class_name(self, brace: int) -> str:
        words = self._outside_templates(self.start, brace)
        key = next(i for i, word in enumerate(words) if word in CLASS_KEYS)
        return words[key + 1] if key + 1 < len(words) else ""

    def _remove_definition(self, brace: int) -> int:
        end = self.partner[brace] + 1
        if end < len(self.code) and self.words[end] == ";":
            end += 1
        for token in self.code[self.start : end]:
            token.text = ""
        self.start = end
        return end

    # -- declarations ----------------------------------------------------------------------------------------------

    def _after_template_list(self, i: int, certain: bool = False) -> int:
        """The index after the `>` that closes the `<` at i; i + 1 if it is a less-than."""
        depth, k = 0, i
        stop = (";", "{", "}", ")") if certain else (";", "{", "}", ")", "&&", "||")
        while k < len(self.code) and self.words[k] not in stop:
            word = self.words[k]
            if word == "<":
                depth += 1
            elif word == ">":
                depth -= 1
                if depth == 0:
                    return k + 1
            elif word in OPENING:
                k = self.partner.get(k, k)
            k += 1
        return i + 1

    def _after_template_headers(self, i: int) -> int:
        while self.words[i] == "template" and self.words[i + 1] == "<":
            i = self._after_template_list(i + 1, certain=True)
        return i

    def _outside_templates(self, start: int, end: int) -> list[str]:
        return self.words[self._after_template_headers(start) : end]

    def _parameter_list(self, start: int, end: int) -> int | None:
        """The index of the `(` before a function's parameters; None if [start, end) declares no function."""
        k = self._after_template_headers(start)
        while k < end:
            word, before = self.words[k], self.words[k - 1] if k > start else ""
            if word == "=" and before != "operator":
                return None
            if word == "(" and before in NOT_A_NAME:
                k = self.partner[k] + 1
            elif word == "(" and before == "operator":  # operator()(...)
                return self.partner[k] + 1
            elif word == "(" and (self._is_name(k - 1) or before == ">" or self.words[k - 2] == "operator"):
                return k
            elif word == "<" and self._is_name(k - 1) and before != "operator":
                k = self._after_template_list(k)
            else:
                k = self.partner[k] + 1 if word in ("[", "{") and k in self.partner else k + 1
        return None

    def _is_name(self, i: int) -> bool:
        return self.code[i].kind == "word" and self.words[i] not in NOT_A_NAME

    def _parameters(self, opening: int) -> list[tuple[int, int]]:
        """The [start, end) of each parameter in the list that opens here."""
        parts, depth, start, k = [], 0, opening + 1, opening + 1
        closing = self.partner[opening]
        while k <= closing:
            word = self.words[k]
            if k == closing or (word == "," and depth == 0):
                if k > start:
                    parts.append((start, k))
                start = k + 1
            elif word == "<":
                depth += 1
            elif word == ">":
                depth -= 1
            elif word in OPENING:
                k = self.partner[k]
            k += 1
        return parts

    def _plain(self, start: int, end: int) -> list[str]:
        """The words without address spaces, as they will be compared."""
        words = ["const" if w == "constant" else w for w in self.words[start:end]]
        return [w for w in words if w not in SPACES and w not in ("kernel", "inline", "static")]

    def _class_key(self, brace: int) -> tuple[object, ...]:
        return (self.scopes[-1].start, "class", *self._plain(self.start, brace))

    def _function_key(self, brace: int) -> tuple[object, ...]:
        opening = self._parameter_list(self.start, brace)
        assert opening is not None
        parameters = tuple(self._parameter_type(*part) for part in self._parameters(opening))
        closing = self.partner[opening]
        qualifiers = range(closing + 1, min(closing + 3, brace))
        if self.words[opening - 1] == self.scopes[-1].name:  # a constructor, of an object in constant memory
            for i in qualifiers:
                if self.words[i] == "constant":
                    self.words[i] = self.code[i].text = "device"
        qualified = {"const", "constant"} & {self.words[i] for i in qualifiers}
        return (self.scopes[-1].start, tuple(self._plain(self.start, opening)), parameters, bool(qualified))

    def _parameter_type(self, start: int, end: int) -> tuple[str, ...]:
        """Without the parameter's name and default."""
        words = self._plain(start, end)
        if "=" in words:
            words = words[: words.index("=")]
        named = len(words) > 1 and words[-1].isidentifier() and words[-2] not in ("::", "typename", "const", "unsigned")
        return tuple(words[:-1] if named else words)

    # -- kernels ---------------------------------------------------------------------------------------------------

    def _note_kernel(self, brace: int) -> None:
        attributes = self._attributes(self.start, brace)
        opening = self._parameter_list(self.start, brace)
        assert opening is not None
        by_attribute = any(re.match(r"(host_name.*, )?kernel\b", text) for text in attributes)
        if not by_attribute and "kernel" not in self.words[self.start : opening]:
            return
        name = self._qualified(self.words[opening - 1])
        parameters = tuple(self._parameter_attribute(*part) for part in self._parameters(opening))
        kernel = KernelFunction(name, parameters)
        self.kernels.append(kernel)
        if by_attribute:
            self.code[self._after_template_headers(self.start)].text = (
                "static " + self.code[self._after_template_headers(self.start)].text
            )
        if self.words[self.start] != "template":
            host_name = _host_name(attributes) or self.words[opening - 1]
            self.module.entries[host_name] = Entry(name, kernel)

    def _parameter_attribute(self, start: int, end: int) -> str | None:
        found = self._attributes(start + 1, end)
        return found[-1] if found else None

    def _qualified(self, name: str) -> str:
        return "::".join([*(s.name for s in self.scopes if s.kind == "namespace" and s.name), name])

    def _end_statement(self, i: int) -> None:
        kind = self.scopes[-1].kind
        if self.start >= i:
            return
        if kind == "namespace":
            attributes = self._attributes(self.start, i)
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
        for token in self.code[self.start : end + 1]:
            token.text = ""
        self.module.entries[host_name] = Entry(function, self._kernel(function, host_name))

    def _function_id(self, k: int, end: int) -> str:
        words: list[str] = []
        while k < end and self.words[k] != "(":
            after = self._after_template_list(k, certain=True) if self.words[k] == "<" else k + 1
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
        for token in self.code[self.start : end]:
            token.text = ""
        self.code[self.start].text = (
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
                after = self._after_template_list(k)
                type_ += self.words[k:after]
                k = after
            elif type_ and self._is_name(k) and self.words[k + 1] in ("[", ";", ","):
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
        for token in self.code[self.start : end]:
            token.text = ""
        self.code[self.start].text = "; ".join(declarations)


def _host_name(attributes: list[str]) -> str | None:
    for text in attributes:
        if found := re.search(r'host_name \( ((?:"[^"]*" ?)+)', text):
            return "".join(re.findall(r'"([^"]*)"', found[1]))
    return None
