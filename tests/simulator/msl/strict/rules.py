"""What the language does not have, and address spaces that are not written: seen in the tokens."""

from __future__ import annotations

from simulator.msl.declarations import SPACES
from simulator.msl.errors import CompileError
from simulator.msl.strict.source import Source, Violation
from simulator.msl.walk import ACCESS, Scope, Walker

BANNED = {
    "goto": ("goto", "goto is not in Metal"),
    "try": ("exceptions", "there are no exceptions in Metal"),
    "throw": ("exceptions", "there are no exceptions in Metal"),
    "catch": ("exceptions", "there are no exceptions in Metal"),
    "noexcept": ("exceptions", "noexcept is not in Metal"),
    "new": ("allocation", "there is no new in Metal"),
    "delete": ("allocation", "there is no delete in Metal"),
    "dynamic_cast": ("run-time types", "there are no run-time types in Metal"),
    "typeid": ("run-time types", "there are no run-time types in Metal"),
    "thread_local": ("storage", "thread_local is not in Metal"),
    "register": ("storage", "register is not in Metal"),
    "virtual": ("virtual", "member functions cannot be virtual in Metal"),
    "asm": ("asm", "no assembler in Metal"),
    "__asm": ("asm", "no assembler in Metal"),
    "__asm__": ("asm", "no assembler in Metal"),
    "double": ("type", "double is not in Metal"),
    "__int128": ("type", "__int128 is not in Metal"),
    "__bf16": ("type", "the type is bfloat in Metal"),
    "bfloat16_t": ("type", "bfloat16_t is not in Metal: the type is bfloat"),
    "concept": ("language version", "concepts are not in Metal"),
    "requires": ("language version", "concepts are not in Metal"),
    "vertex": ("reserved name", "vertex is a keyword of Metal"),
    "fragment": ("reserved name", "fragment is a keyword of Metal"),
}
POINTERS = ("*", "&", "&&")
NOT_A_TYPE = {"return", "case", "operator", "sizeof", "else", "do", "typename", "template", "using", "new", "delete"}


class Rules(Walker):
    def __init__(self, source: Source) -> None:
        super().__init__(source.tokens())
        self.source = source
        self.found: list[Violation] = []

    def violations(self) -> list[Violation]:
        self._words()
        self.walk()
        return self.found

    def add(self, i: int, rule: str, sentence: str) -> None:
        self.found.append(self.source.violation(self.code.tokens[i], rule, sentence))

    # -- single words ----------------------------------------------------------------------------------------------

    def _words(self) -> None:
        defined = self._user_types()
        for i, word in enumerate(self.words):
            before, after = self.words[i - 1] if i else "", self.words[i + 1] if i + 1 < len(self.words) else ""
            if word in BANNED and not self._excused(i, before, word in defined):
                self.add(i, *BANNED[word])
            elif word == "long" and after == "long":
                self.add(i, "type", "long long is not in Metal: long has 64 bits")
            elif word == "std" and after == "::":
                self.add(i, "std", "there is no namespace std in Metal")
            elif word == ":" and self._is_label(i):
                self.add(i - 1, "goto", "there are no labels in Metal")
            elif word == "[" and self._is_lambda(i, before):
                self.add(i, "lambda", "lambdas need Metal 3.2")
            elif word == "for" and after == "(":
                self._declarator_pointers(i + 2, self.partner[i + 1])
            elif word in POINTERS and self._is_abstract_pointer(i, before, after):
                self._check_pointer(i)

    def _user_types(self) -> set[str]:
        """Names that the source itself declares as types."""
        return {
            self.words[i + 1] if word == "using" else self.words[self.words.index(";", i) - 1]
            for i, word in enumerate(self.words)
            if word in ("using", "typedef")
        }

    def _excused(self, i: int, before: str, defined: bool) -> bool:
        return (
            (self.words[i] == "delete" and before == "=")
            or before in (".", "->", "::")
            or (self.words[i] == "bfloat16_t" and defined)
            or self.source.in_internals(self.code.tokens[i])
        )

    def _is_label(self, i: int) -> bool:
        name, before = self.words[i - 1], self.words[i - 2] if i > 1 else ""
        named = self.code.is_name(i - 1) and name not in ACCESS and name != "default"
        return named and before in ("{", "}", ";")

    def _is_lambda(self, i: int, before: str) -> bool:
        after = self.partner.get(i, i) + 1
        if after >= len(self.words) or self.words[after] not in ("(", "{"):
            return False
        indexed = before in (")", "]", "operator") or (self.code.is_name(i - 1) and before != "return")
        return not indexed

    # -- address spaces --------------------------------------------------------------------------------------------

    def _is_type_end(self, i: int) -> bool:
        word = self.words[i]
        return word == ">" or word in POINTERS or (self.code.is_name(i) and word not in NOT_A_TYPE)

    def _is_abstract_pointer(self, i: int, before: str, after: str) -> bool:
        """A `*` or `&` after which no operand comes is part of a type."""
        return before != "operator" and self._is_type_end(i - 1) and after in (")", ">", ",", "const", "*")

    def _check_pointer(self, i: int) -> None:
        """Somewhere before the pointer, in the same declarator, its space is written.

        A reference to a pointer needs none of its own: MLX's are `device T*& x`.
        """
        if self.words[i] != "*" and self.words[i - 1] == "*":
            return
        k = i - 1
        while k >= 0:
            word = self.words[k]
            if word in SPACES:
                return
            if word in POINTERS or word in ("(", ",", ";", "{", "}", "<", "=", "return", "using"):
                break
            if word in (")", "]"):
                k = self.partner.get(k, k)
            elif word == ">":
                k = self._template_start(k)
            k -= 1
        kind = "pointer" if "*" in self.words[i : i + 2] else "reference"
        self.add(i, "address space", f"the {kind} has no address space: device, constant, threadgroup or thread")

    def _template_start(self, k: int) -> int:
        depth = 0
        for i in range(k, -1, -1):
            depth += {">": 1, "<": -1}.get(self.words[i], 0)
            if depth == 0:
                return i
        return k

    def _declarator_pointers(self, start: int, end: int) -> None:
        """Those of a declaration that starts here, up to its name; none where an expression starts."""
        k = start
        while k < end:
            word = self.words[k]
            if word in POINTERS:
                if k == start or not self._is_type_end(k - 1):
                    return
                self._check_pointer(k)
                k += 1
            elif word == "<":
                k = self.code.after_template_list(k, certain=True)
            elif word == "decltype":
                k = self.partner[k + 1] + 1
            elif word == "(" and self.words[k + 1] in POINTERS and self.words[self.partner[k] + 1] == "[":
                self._check_pointer(k)  # T (&name)[n]
                return
            elif word == "::" or (self.code.is_name(k) and word not in NOT_A_TYPE - {"typename"}):
                k += 1
            else:
                return

    def _parameters(self, opening: int) -> None:
        for start, end in self.code.parameters(opening):
            self._declarator_pointers(start, end)
            words = self.words[start : self._default(start, end)]
            written = [w for w in words if w in SPACES]
            if written and "<" not in words and not {*POINTERS, "["} & set(words):
                self.add(start, "address space", f"a parameter passed by value cannot be in {written[0]}")

    def _default(self, start: int, end: int) -> int:
        return next((k for k in range(start, end) if self.words[k] == "="), end)

    # -- declarations ----------------------------------------------------------------------------------------------

    def enter(self, scope: Scope, brace: int) -> None:
        if scope.kind == "class":
            self._class(scope, brace)
        elif scope.kind == "function":
            self._function(brace)
        elif scope.kind == "block":  # or the braces of an initialiser
            self._local(self.start, brace)
            self._threadgroup_variables(self.start, brace)

    def _class(self, scope: Scope, brace: int) -> None:
        start = self.code.after_template_headers(self.start)
        token = self.code.tokens[start]
        if ":" in self.words[start:brace] and not self.source.in_internals(token):
            self.add(start, "inheritance", f"{scope.name or 'the class'} is derived: no inheritance in Metal")

    def _function(self, brace: int) -> None:
        start = self.code.after_template_headers(self.start)
        opening = self.code.parameter_list(self.start, brace)
        assert opening is not None
        self._declarator_pointers(start, opening)
        self._parameters(opening)
        if self.words[opening - 1] == "main":
            self.add(opening - 1, "reserved name", "a function cannot be called main")

    def statement(self, end: int) -> None:
        start = self.code.after_template_headers(self.start)
        scope = self.scopes[-1]
        if scope.kind in ("function", "block"):
            self._local(start, end)
        elif (opening := self.code.parameter_list(start, end)) is not None and self.words[start] != "template":
            self._declarator_pointers(start, opening)
            self._parameters(opening)
        elif self.words[start] != "template":
            self._declarator_pointers(start + (self.words[start] == "typedef"), end)
            self._alias(start, end)
        self._threadgroup_variables(start, end)
        self._function_pointer(start, end)

    def _alias(self, start: int, end: int) -> None:
        if self.words[start] == "using" and "=" in self.words[start:end]:
            for k in range(start, end):
                if self.words[k] in POINTERS and k + 1 == end:
                    self._check_pointer(k)

    def _local(self, start: int, end: int) -> None:
        self._declarator_pointers(start + (self.words[start] == "typedef"), end)
        self._alias(start, end)
        head = self._declaration_head(start, end)
        if "static" in head:
            self.add(start, "static local", "a variable in a function cannot be static")
        space = next((w for w in head if w in ("device", "constant")), None)
        if space and not {*POINTERS, "(", "<", "using", "typedef"} & set(head):
            self.add(start, "address space", f"a variable in a function cannot be in {space}")

    def _declaration_head(self, start: int, end: int) -> list[str]:
        stop = next((k for k in range(start, end) if self.words[k] in ("=", "[", "{", "(")), end)
        return self.words[start : stop + 1]

    def _threadgroup_variables(self, start: int, end: int) -> None:
        try:
            variables = self.code.threadgroup_variables(start, end)
        except CompileError as error:
            self.add(start, "threadgroup variable", str(error))
            return
        function = next((s for s in reversed(self.scopes) if s.kind in ("function", "class")), None)
        if variables and not (function and function.kernel):
            self.add(start, "threadgroup variable", f"{variables[1][0][0]}: threadgroup variables live in kernels only")

    def _function_pointer(self, start: int, end: int) -> None:
        """Shipped kernels pass functions as parameters, which disappear by inlining, and do nothing else with them."""
        for k in range(start, end - 2):
            is_pointer = self.words[k : k + 2] == ["(", "*"] and self.code.is_name(k + 2)
            closing = self.partner.get(k, k)
            if is_pointer and closing == k + 3 and self.words[closing + 1] == "(" and self._is_type_end(k - 1):
                self.add(k, "function pointer", "a pointer to a function is only used as a parameter")
