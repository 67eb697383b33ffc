"""Preprocessed source whose tokens know where they come from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simulator.msl.tokens import MARKER, Token, tokenise
from simulator.msl.toolchain import INCLUDE

INTERNALS = re.compile(r"#\s*pragma METAL internals : (enable|disable)")


@dataclass(frozen=True)
class Violation:
    """A rule that the source breaks."""

    rule: str
    file: str
    line: int
    sentence: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.sentence}"


class Source:
    def __init__(self, text: str, name: str, preprocessed: str) -> None:
        self.text, self.name = text, name
        self.preprocessed = preprocessed
        self._kept: list[Token] = []
        self._places: dict[int, tuple[str, int]] = {}
        self._internals = _internals(preprocessed)

    def tokens(self) -> list[Token]:
        """A copy for each reader: they rewrite it."""
        tokens = tokenise(self.preprocessed)
        self._kept += tokens  # a token's id is its own only as long as the token lives
        self._places |= {id(token): place for token, place in _places(tokens)}
        return tokens

    def violation(self, token: Token, rule: str, sentence: str) -> Violation:
        return Violation(rule, *self._places[id(token)], sentence)

    def in_internals(self, token: Token) -> bool:
        """Whether MLX's private pragma, which lifts some rules, is on here."""
        file, line = self._places[id(token)]
        state = False
        for other, at, enabled in self._internals:
            if other == file and at < line:
                state = enabled
        return state

    def non_ascii(self) -> Iterator[Violation]:
        """Torch hands the text to Apple's compiler as ASCII, comments too."""
        files = {self.name, *(marker[2] for marker in MARKER.finditer(self.preprocessed))}
        files = {file for file in files if not file.startswith(("<", str(INCLUDE)))}
        for file in sorted(files):
            text = self.text if file == self.name else Path(file).read_text() if Path(file).is_file() else ""
            for number, line in enumerate(text.splitlines(), 1):
                if not line.isascii():
                    yield Violation("ascii", file, number, "a character that is not ASCII")


def _places(tokens: list[Token]) -> Iterator[tuple[Token, tuple[str, int]]]:
    file, line = "", 0
    for token in tokens:
        yield token, (file, line)
        if token.kind == "marker" and (marker := MARKER.match(token.text)):
            file, line = marker[2], int(marker[1].split()[1])
        else:
            line += token.text.count("\n")


def _internals(preprocessed: str) -> list[tuple[str, int, bool]]:
    found, file, line = [], "", 0
    for text in preprocessed.splitlines():
        if marker := MARKER.match(text):
            file, line = marker[2], int(marker[1].split()[1])
            continue
        if pragma := INTERNALS.match(text):
            found.append((file, line, pragma[1] == "enable"))
        line += 1
    return found
