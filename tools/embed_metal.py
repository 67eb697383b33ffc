"""Puts the Metal shaders into a C++ file, the definitions that csrc/mps/shaders.h declares.

Every csrc/mps/kernels/<library>.metal becomes one entry: its text with the project's headers in place, which can be
compiled on first use, and, where Apple's Metal compiler is at hand, the compiled library, which needs no compiling.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[1] / "csrc" / "mps" / "kernels"
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
# The language of macOS 14, and the arithmetic that torch's own kernels are compiled with: NaN and infinity count.
METAL = ["-std=metal3.1", "-mmacosx-version-min=14.0", "-fno-fast-math", "-Wall", "-Wextra", "-Werror"]


def libraries() -> list[Path]:
    return sorted(KERNELS.glob("*.metal"))


def flatten(path: Path) -> str:
    """The source with each header of ours in place of its first `#include`. `#line` keeps messages right."""
    return "".join(_lines(path, set()))


def _lines(path: Path, seen: set[Path]) -> list[str]:
    lines = [f'#line 1 "{_name(path)}"\n']
    for number, line in enumerate(path.read_text(encoding="ascii").splitlines(), start=1):
        if include := INCLUDE.match(line):
            header = _find(include[1], path)
            if header not in seen:
                seen.add(header)
                lines += [*_lines(header, seen), f'#line {number + 1} "{_name(path)}"\n']
            else:
                lines.append("\n")
        elif line.strip() == "#pragma once":
            lines.append("\n")
        else:
            lines.append(f"{line}\n")
    return lines


def _name(path: Path) -> str:
    return path.relative_to(KERNELS).as_posix()


def _find(name: str, user: Path) -> Path:
    for folder in (user.parent, KERNELS):
        if (folder / name).is_file():
            return (folder / name).resolve()
    raise FileNotFoundError(f"{_name(user)} includes {name}, which is not in {KERNELS}")


def metal_compiler() -> bool:
    """Whether this machine has Apple's offline Metal compiler. Xcode 26 and later download it separately."""
    if shutil.which("xcrun") is None:
        return False
    return subprocess.run(["xcrun", "-sdk", "macosx", "metal", "--version"], capture_output=True).returncode == 0


def choose_metallib() -> bool:
    """Whether to compile the shaders now: as TORCH_METAL_OPS_SHADERS says, or if the compiler is there."""
    wish = os.environ.get("TORCH_METAL_OPS_SHADERS")
    if wish not in (None, "source", "metallib"):
        raise SystemExit(
            f"torch_metal_ops: TORCH_METAL_OPS_SHADERS must be source or metallib, got {wish!r}. "
            "Unset it to let the build choose."
        )
    if wish is not None:
        return wish == "metallib"
    found = metal_compiler()
    if not found:
        print(
            "torch_metal_ops: no Metal compiler here, so the shaders are compiled on first use. "
            "To compile them now: xcodebuild -downloadComponent MetalToolchain, then install again."
        )
    return found


def _metallib(source: str, library: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        text, air, result = (Path(folder) / f"{library}.{suffix}" for suffix in ("metal", "air", "metallib"))
        text.write_text(source)
        subprocess.run(["xcrun", "-sdk", "macosx", "metal", *METAL, "-c", text, "-o", air], check=True)
        subprocess.run(["xcrun", "-sdk", "macosx", "metallib", air, "-o", result], check=True)
        return result.read_bytes()


def definitions(metallib: bool) -> str:
    """The text of the C++ file."""
    arrays, entries = [], []
    for path in libraries():
        name, source = path.stem, flatten(path)
        compiled = _metallib(source, name) if metallib else b""
        # An array of C++ has at least one element.
        arrays.append(f"const uint8_t k_{name}_metallib[] = {{{', '.join(map(str, compiled or b'0'))}}};")
        arrays.append(f'const char k_{name}_source[] = R"metal({source})metal";')
        entries.append(f'    {{"{name}", k_{name}_source, k_{name}_metallib, {len(compiled)}}},')
    return "\n".join(
        [
            "// Written by tools/embed_metal.py from csrc/mps/kernels.",
            f'#include "{KERNELS.parent.as_posix()}/shaders.h"',
            "namespace tmo::mps {",
            "namespace {",
            *arrays,
            "}  // namespace",
            f"extern const Shader kShaders[] = {{\n{chr(10).join(entries)}\n}};",
            f"extern const size_t kShaderCount = {len(entries)};",
            "}  // namespace tmo::mps",
            "",
        ]
    )


def write(output: Path, metallib: bool) -> None:
    """Writes the C++ file, if its content has changed."""
    text = definitions(metallib)
    if not output.exists() or output.read_text() != text:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text)
