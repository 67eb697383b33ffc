"""From an instruction of a compiled kernel to the line of Metal it came from: the ELF section .debug_line, DWARF 4."""

from __future__ import annotations

import functools
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


def source_line(library: Path, address: int) -> tuple[str, int]:
    rows = _rows(library)
    i = bisect_right(rows, (address, "\U0010ffff", 0)) - 1
    return (rows[i][1], rows[i][2]) if i >= 0 else ("", 0)


@functools.cache
def _rows(library: Path) -> list[tuple[int, str, int]]:
    """(first address, file, line) of every run of instructions, by address."""
    reader = _Reader(_section(library.read_bytes(), b".debug_line"))
    rows: list[tuple[int, str, int]] = []
    while reader.at < len(reader.data):
        rows += _unit(reader)
    return sorted(rows)


def _section(elf: bytes, name: bytes) -> bytes:
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = headers[names_index][4]
    for name_at, _, _, _, offset, length in headers:
        if elf[names + name_at :].startswith(name + b"\0"):
            return elf[offset : offset + length]
    return b""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def unpack(self, form: str) -> int:
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.unpack("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def sleb(self) -> int:
        start = self.at
        value = self.uleb()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def string(self) -> str:
        end = self.data.index(b"\0", self.at)
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text


@dataclass
class _State:
    address: int = 0
    file: int = 1
    line: int = 1


def _unit(r: _Reader) -> Iterator[tuple[int, str, int]]:
    """One compilation's line program."""
    end = r.unpack("I") + r.at
    version, header_length = r.unpack("H"), r.unpack("I")
    program = r.at + header_length
    if version != 4:
        r.at = end
        return
    step, _, _, line_base, line_range, opcode_base = (r.unpack(f) for f in "BBBbBB")
    operands = [r.unpack("B") for _ in range(opcode_base - 1)]
    folders = [""]
    while folder := r.string():
        folders.append(folder)
    files = [""]
    while name := r.string():
        files.append(str(Path(folders[r.uleb()], name)))
        _ = r.uleb(), r.uleb()
    r.at = program
    state = _State()
    while r.at < end:
        opcode = r.unpack("B")
        emit = False
        if opcode >= opcode_base:
            advance, add = divmod(opcode - opcode_base, line_range)
            state.address += advance * step
            state.line += line_base + add
            emit = True
        elif opcode == 0:
            length = r.uleb()
            after = r.at + length
            extended = r.unpack("B")
            if extended == 1:  # the end of a sequence: what follows belongs to nobody
                yield state.address, "", 0
                state = _State()
            elif extended == 2:
                state.address = r.unpack("Q")
            r.at = after
        elif opcode == 1:
            emit = True
        elif opcode == 2:
            state.address += r.uleb() * step
        elif opcode == 3:
            state.line += r.sleb()
        elif opcode == 4:
            state.file = r.uleb()
        elif opcode == 8:
            state.address += (255 - opcode_base) // line_range * step
        elif opcode == 9:
            state.address += r.unpack("H")
        else:
            for _ in range(operands[opcode - 1]):
                r.uleb()
        if emit:
            yield state.address, files[state.file], state.line
