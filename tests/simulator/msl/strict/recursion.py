"""Functions that reach themselves, in the calls of clang's intermediate code: templates are functions of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from simulator.msl.strict.source import Violation

FUNCTION = re.compile(r"^define .*?@(?P<name>[\w.$]+)\(.*!dbg !(?P<debug>\d+)")
CALL = re.compile(r"\bcall .*?@([\w.$]+)\(")
SUBPROGRAM = re.compile(
    r'^!(?P<debug>\d+) = distinct !DISubprogram\(name: "(?P<name>[^"]*)".*?file: !(?P<file>\d+), line: (?P<line>\d+)'
)
FILE = re.compile(r'^!(\d+) = !DIFile\(filename: "([^"]*)"')


def cycles(intermediate: str) -> Iterator[Violation]:
    calls: dict[str, set[str]] = {}
    debug: dict[str, str] = {}
    files: dict[str, str] = {}
    functions: dict[str, tuple[str, str, int]] = {}
    name = ""
    for line in intermediate.splitlines():
        if found := FUNCTION.match(line):
            name = found["name"]
            calls[name], debug[name] = set(), found["debug"]
        elif found := SUBPROGRAM.match(line):
            functions[found["debug"]] = (found["name"], found["file"], int(found["line"]))
        elif found := FILE.match(line):
            files[found[1]] = found[2]
        elif name and (found := CALL.search(line)):
            calls[name].add(found[1])
    for function in calls:
        if function in _reachable(calls, function):
            plain, file, number = functions[debug[function]]
            yield Violation("recursion", files[file], number, f"{plain} calls itself, directly or through others")


def _reachable(calls: dict[str, set[str]], function: str) -> set[str]:
    seen: set[str] = set()
    open_ = list(calls[function])
    while open_:
        if (callee := open_.pop()) not in seen:
            seen.add(callee)
            open_ += calls.get(callee, ())
    return seen
