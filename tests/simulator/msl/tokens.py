"""Preprocessed Metal source as tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from simulator.msl.toolchain import INCLUDE

TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<string>"(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*')
      | (?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<symbol>::|->|<<=|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|.)""",
    re.VERBOSE | re.DOTALL,
)
MARKER = re.compile(r'(# \d+ "([^"]*)")')
OPENING, CLOSING = ("(", "[", "{"), (")", "]", "}")


@dataclass(slots=True)
class Token:
    text: str
    kind: str


def tokenise(preprocessed: str) -> list[Token]:
    tokens: list[Token] = []
    for is_code, text in _passages(preprocessed):
        if is_code:
            tokens += [Token(m.group(), m.lastgroup or "") for m in TOKEN.finditer(text)]
        else:
            tokens.append(Token(text, "marker"))
    return tokens


def _passages(preprocessed: str) -> Iterator[tuple[bool, str]]:
    """The kernel author's text and the line markers in it. The library's own text is left out."""
    library, passage = False, []
    for line in preprocessed.splitlines(keepends=True):
        marker = MARKER.match(line)
        if marker:
            library = marker[2].startswith((str(INCLUDE), "<"))
        if library:
            continue
        if not line.startswith("#"):
            passage.append(line)
            continue
        yield True, "".join(passage)
        passage = []
        # Without the flags, which would have to pair up. A pragma is ignored, but its line counts.
        yield False, f"{marker[1]}\n" if marker else "\n"
    yield True, "".join(passage)


def brackets(tokens: list[Token]) -> dict[int, int]:
    """The index of the other bracket, for every index of a bracket that has one."""
    partner: dict[int, int] = {}
    open_at: list[int] = []
    for i, token in enumerate(tokens):
        if token.text in OPENING:
            open_at.append(i)
        elif token.text in CLOSING and open_at:
            j = open_at.pop()
            partner[i], partner[j] = j, i
    return partner
