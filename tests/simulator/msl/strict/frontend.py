"""The source as OpenCL C++, compiled by clang against metal.h.

That front end is where Metal's rules for address spaces come from: what may be cast, converted, written and called.
It also takes neither double, virtual functions, arrays of variable size nor variables at file scope outside constant.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simulator.msl.cache import cached
from simulator.msl.declarations import SPACES
from simulator.msl.errors import CompileError
from simulator.msl.strict.recursion import cycles
from simulator.msl.strict.source import Source, Violation
from simulator.msl.toolchain import toolchain
from simulator.msl.walk import Scope, Walker

HEADER = Path(__file__).parent / "metal.h"
OPENCL = {"device": "__global", "constant": "__constant", "threadgroup": "__local", "thread": "__private"}
FLAGS = [
    "-cl-std=clc++2021",
    "-cl-no-stdinc",
    "--target=spir64",
    "-fdeclspec",
    "-nostdinc",
    "-O0",
    "-gline-tables-only",
    "-ferror-limit=0",
    "-fno-caret-diagnostics",
    "-Xclang",
    "-cl-ext=-all,+cl_khr_fp16,+__cl_clang_function_pointers,+__opencl_c_generic_address_space",
    # Metal 3.1 is C++14.
    "-Wpre-c++17-compat",
    "-Wall",
    "-Wextra",
    "-Wvla",
    "-Wzero-length-array",
]
# Words of OpenCL that mean nothing in Metal, and types that it has too.
TAKEN = {"global", "local", "generic", "pipe", "read_only", "write_only", "read_write", "event_t", "queue_t"}
TAKEN |= {f"atomic_{t}" for t in ("int", "uint", "bool", "ulong", "float")}
THREADGROUP_BYTES = 32768
FLOATING = re.compile(r"(?:[\d']+\.[\d']*|\.\d[\d']*|\d[\d']*(?=[eE]))(?:[eE][+-]?\d+)?|0[xX][\da-fA-F.']+[pP][+-]?\d+")
SUFFIXED = re.compile(rf"({FLOATING.pattern}|\d+)(h|H|bf|BF)")

# The rule that a message is about, by the first pattern that it matches.
RULES = [
    (r"no matching function for call to '(simd|quad)_", "simd type"),
    (r"ambiguous", "ambiguous call"),
    (r"threadgroup memory", "threadgroup memory"),
    (r"constructor of its own", "threadgroup variable"),
    (r"simdgroup_matrix|as_type|invalid type for atomic", "type"),
    (r"no matching function", "overload"),
    (r"narrowed", "narrowing"),
    (r"C\+\+ standards before C\+\+17|c\+\+17-", "language version"),
    (r"\[-W(?!vla|zero)", "warning"),
    (r"deleted operator|(conversion|constructor|initialize).*bfloat", "bfloat"),
    (r"object parameter", "address space"),
    (r"array size is not|variable length array|zero.*size.* array|zero-length", "array size"),
    (r"read-only|discards qualifiers|drops.*qualifier|casts away|const-qualified", "const"),
    (r"property expression|vector element", "vector component"),
    (r"pointers to functions", "function pointer"),
    (r"static local", "static local"),
    (
        r"[Aa]ddress space|(device|constant|threadgroup|generic) .*(thread|device|constant|threadgroup|generic)",
        "address space",
    ),
    (r"bfloat", "bfloat"),
    (r"\[-W", "warning"),
]


def compile_errors(source: Source) -> list[Violation]:
    code = _OpenCL(source).run()
    errors, intermediate = _compile(code)
    found = [v for message in _messages(errors) if (v := message.violation(source))]
    return found or list(cycles(intermediate))


def _compile(code: str) -> tuple[str, str]:
    """The compiler's messages and, if there were no errors, the intermediate code."""
    pch = cached("strict.pch", "\0".join(FLAGS), HEADER.read_text(), str(HEADER), make=_precompile)
    command = [*toolchain().compiler, *FLAGS, "-include-pch", str(pch), "-x", "clcpp", "-"]
    done = subprocess.run([*command, "-S", "-emit-llvm", "-o", "-"], input=code, capture_output=True, text=True)
    if done.returncode and ": error:" not in done.stderr:
        raise CompileError(done.stderr)
    return done.stderr, done.stdout


def _precompile(target: Path) -> None:
    command = [
        *toolchain().compiler,
        *FLAGS,
        "-c",
        "-x",
        "clcpp",
        "-Xclang",
        "-emit-pch",
        str(HEADER),
        "-o",
        str(target),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr)


# -- messages --------------------------------------------------------------------------------------------------------


@dataclass
class _Message:
    file: str
    line: int
    kind: str
    text: str
    notes: list[tuple[str, int, str]]

    def violation(self, source: Source) -> Violation | None:
        if self._is_of_our_making(source):
            return None
        rule = next((rule for pattern, rule in RULES if re.search(pattern, self.text)), "compiler")
        if self.text.startswith("no viable overloaded") and any("bfloat" in text for _, _, text in self.notes):
            rule = "bfloat"
        if self.kind == "error" and rule == "warning":
            rule = "compiler"
        file, line = self.file, self.line
        if file == str(HEADER):  # the user's line is the one that asked
            file, line = next(((f, n) for f, n, _ in self.notes if f != str(HEADER)), (file, line))
        return Violation(rule, file, line, self.text)

    def _is_of_our_making(self, source: Source) -> bool:
        """Metal copies structures out of constant memory; here the implicit constructor cannot."""
        implicit = any("implicit copy" in t and "'constant'" in t for _, _, t in self.notes)
        # clang does not know that this text was included, and it leaves such things in a header alone.
        unused = re.search(r"\[-W(unused|unneeded|undefined)-", self.text)
        included = unused and self.file != source.name
        own = self.kind == "warning" and self.file == str(HEADER)
        return implicit or included or own


def _messages(errors: str) -> Iterator[_Message]:
    message = None
    for line in errors.splitlines():
        found = re.match(r"(.+?):(\d+):(?:\d+:)? (?:fatal )?(error|warning|note): (.*)", line)
        if found is None:
            continue
        file, number, kind, text = found[1], int(found[2]), found[3], _in_metal(found[4])
        if kind != "note":
            if message:
                yield message
            message = _Message(file, number, kind, text, [])
        elif message:
            message.notes.append((file, number, text))
    if message:
        yield message


def _in_metal(text: str) -> str:
    """A message in Metal's words."""
    for space, word in OPENCL.items():
        text = re.sub(rf"\b{word}\b", space, text)
    text = text.replace(" supported in C++ for OpenCL", " supported in Metal").replace("__generic", "generic")
    return re.sub(r"requires cl_khr_fp64 and __opencl_c_fp64 support", "is not supported in Metal", text)


# -- rewriting -------------------------------------------------------------------------------------------------------


class _OpenCL(Walker):
    """Rewrites what the two languages write differently; lines stay."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.tokens())
        self.variables: list[tuple[Scope, str]] = []  # threadgroup variables and where they are visible
        self.before: dict[int, str] = {}  # text to add to a token
        self.after: dict[int, str] = {}

    def run(self) -> str:
        self.walk()
        self._conditionals()
        for i, token in enumerate(self.code.tokens):
            if "maybe_unused" in self.code.attributes.get(i, []):
                token.text = f"__attribute__((unused)) {token.text}"
            elif token.text in OPENCL:
                token.text = OPENCL[token.text]
            elif token.text in TAKEN:
                token.text = f"msl_{token.text}"
            elif token.text == "kernel":
                token.text = ""
            elif token.kind == "number":
                token.text = _number(token.text)
            token.text = self.before.get(i, "") + token.text + self.after.get(i, "")
        return "".join(t.text for t in self.tokens)

    def enter(self, scope: Scope, brace: int) -> None:
        if scope.kind == "function" and self.scopes[-1].kind == "class":
            self._member_function(brace)

    def statement(self, end: int) -> None:
        kind = self.scopes[-1].kind
        if kind == "class":
            self._member_function(end)
        elif kind == "namespace":
            self._function_constant(end)
        else:
            self._threadgroup_variables(end)

    def _member_function(self, end: int) -> None:
        """One without an address space is for objects in thread memory."""
        start = self.code.after_template_headers(self.start)
        opening = self.code.parameter_list(self.start, end)
        if opening is None or {"static", "friend", "using", "typedef"} & set(self.words[start:opening]):
            return
        name, after = self.words[opening - 1], self.partner[opening] + 1
        if name == self.scopes[-1].name or "~" in self.words[start:opening]:
            return
        qualifiers = after
        while qualifiers < end and self.words[qualifiers] in (*SPACES, "const", "volatile"):
            qualifiers += 1
        if not SPACES & set(self.words[after:qualifiers]):
            self.code.tokens[self.partner[opening]].text += " __private "

    def _function_constant(self, end: int) -> None:
        attributes = self.code.attributes_in(self.start, end)
        if any(text.startswith("function_constant") for text in attributes):
            first, name = self.code.tokens[self.start], self.words[end - 1]
            first.text = f"constexpr __constant bool defined_{name} = true; extern {OPENCL.get(first.text, first.text)}"

    def _threadgroup_variables(self, end: int) -> None:
        try:
            found = self.code.threadgroup_variables(self.start, end)
        except CompileError:  # rules.py says so
            return
        if found is None:
            return
        names = found[1]
        type_ = _renamed(found[0])
        text = ""
        for name, dimensions in names:
            self.variables.append((self.scopes[-1], f"{name}_in_group"))
            text += (
                f"typedef {type_} {name}_in_group{dimensions}; "
                f"__local {name}_in_group& {name} = msl_threadgroup_variable<{name}_in_group>(); "
            )
        self.code.erase(self.start, end)
        self.code.tokens[self.start].text = text + self._limits(type_)

    def _conditionals(self) -> None:
        """To this front end, an object and a value of a class are arms of two types: both become values."""
        for i, word in enumerate(self.words):
            if word == "?" and (colon := self._arm_end(i + 1, (":",))) < len(self.words):
                self._value(i + 1, colon)
                self._value(colon + 1, self._arm_end(colon + 1, (":", ",", ";", ")", "]", "}")))

    def _arm_end(self, k: int, stop: tuple[str, ...]) -> int:
        nested = 0
        while k < len(self.words):
            word = self.words[k]
            if word == "?":
                nested += 1
            elif word in stop and not (word == ":" and nested):
                return k
            elif word == ":":
                nested -= 1
            elif word in ("(", "[", "{"):
                k = self.partner.get(k, k)
            elif word == "<" and self.words[after := self.code.after_template_list(k, certain=True)] in (
                "(",
                "{",
                "::",
            ):
                k = after - 1
            k += 1
        return k

    def _value(self, start: int, end: int) -> None:
        first, last = self.code.tokens[start], self.code.tokens[end - 1]
        if first.text and last.text and (first is not last or first.kind == "word"):
            self.before[start] = self.before.get(start, "") + "msl_value("
            self.after[end - 1] = self.after.get(end - 1, "") + ")"

    def _limits(self, type_: str) -> str:
        visible = [name for scope, name in self.variables if any(s is scope for s in self.scopes)]
        total = " + ".join(f"(sizeof({name}) + 15) / 16 * 16" for name in visible)
        return (
            f'static_assert({total} <= {THREADGROUP_BYTES}, "more than 32 KB of threadgroup memory"); '
            f'static_assert(__is_trivially_constructible({type_}), "a threadgroup variable has a constructor of its own")'
        )


def _renamed(text: str) -> str:
    return re.sub(r"\w+", lambda word: f"msl_{word[0]}" if word[0] in TAKEN else word[0], text)


def _number(text: str) -> str:
    if FLOATING.fullmatch(text):
        return text + "f"
    if suffixed := SUFFIXED.fullmatch(text):
        number = suffixed[1] if FLOATING.fullmatch(suffixed[1]) else f"{suffixed[1]}.0"
        return f"{'half' if suffixed[2] in 'hH' else 'bfloat'}({number}f)"
    return text
