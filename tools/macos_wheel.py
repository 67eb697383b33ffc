"""Builds the wheel for Macs on Linux: python tools/macos_wheel.py [--torch 2.13.0] [--output dist] [--jobs 2]

What setup.py would compile on a Mac is compiled for it by the clang in `ziglang`, against the headers of torch's wheel
for macOS, and linked with that wheel's libraries. A symbol that they do not export is an error, so this finds what the
compiler of Linux cannot: Objective-C++ that does not compile, and torch functions that exist in a header only.

Not what a Mac builds: the C++ headers are LLVM's and not those of Apple's SDK, Python's are those of the Python that
runs this, and the shaders go in as source, since only Apple has a compiler for them.

Needs torch, ziglang, lief, pybind11 and wheel. Downloads stay in ~/.cache/torch-metal-ops-macos.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import embed_metal
import lief
import setuptools
from torch.utils.cpp_extension import BuildExtension

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torch-metal-ops-macos"
PLATFORM = "macosx_14_0_arm64"
TARGET = ["-target", "aarch64-macos.14.0"]
PYTHON = f"{sys.version_info.major}{sys.version_info.minor}"
EXTENSION = f"_C.cpython-{PYTHON}-darwin.so"
ZIG = [sys.executable, "-m", "ziglang"]
TORCH_LIBRARIES = ["libtorch_cpu.dylib", "libtorch_python.dylib", "libc10.dylib"]
LIBCXX = "/usr/lib/libc++.1.dylib"
SIZED_DELETE = "__ZdlPvm"  # in libc++ since macOS 10.12, and called by this clang where torch's calls the other
# zig switches both off, since it brings a libc++ of its own. We use the system's: what macOS 14 has of it, visibly.
SYSTEM_LIBCXX = [
    "-U_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS",
    "-D_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=1",
    "-U_LIBCPP_DISABLE_VISIBILITY_ANNOTATIONS",
]


def fetch(version: str) -> Path:
    """The folder `torch` of its wheel for macOS, as far as building needs it."""
    folder = CACHE / f"torch-{version}-cp{PYTHON}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as download:
            which = [f"torch=={version}", "--no-deps", "--only-binary=:all:", "--platform", PLATFORM]
            pip = [sys.executable, "-m", "pip", "download", "--quiet"]
            subprocess.run([*pip, *which, "--python-version", PYTHON, "--dest", download], check=True)
            with zipfile.ZipFile(next(Path(download).glob("*.whl"))) as wheel:
                wanted = [name for name in wheel.namelist() if name.startswith(("torch/include/", "torch/lib/lib"))]
                wheel.extractall(Path(download) / "wheel", wanted)
            (Path(download) / "wheel").rename(folder)
    return folder / "torch"


def extension() -> setuptools.Extension:
    """What setup.py builds on a Mac."""
    assert BuildExtension  # torch's build module, which setup.py imports, must be loaded while this is still Linux
    with mock.patch("sys.platform", "darwin"), mock.patch("setuptools.setup") as setup:
        runpy.run_path(str(ROOT / "setup.py"))
    return setup.call_args.kwargs["ext_modules"][0]


def imports(library: Path) -> Iterator[tuple[str, str]]:
    """Each symbol that a Mach-O library takes from elsewhere, with the library, or "" where any may have it."""
    binaries = lief.MachO.parse(library)  # which owns what at() gives
    binary = binaries.at(0)
    loaded = [dylib.name for dylib in binary.libraries if dylib.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB]
    for symbol in binary.imported_symbols:
        ordinal = symbol.library_ordinal
        yield symbol.name, loaded[ordinal - 1] if 0 < ordinal <= len(loaded) else ""


def write_libcxx(torch_folder: Path) -> Path:
    """The system's libc++ as far as it is known: the symbols that torch, which runs on macOS 14, takes from it."""
    stub = torch_folder.parent / "libc++.tbd"
    if not stub.exists():
        libraries = [torch_folder / "lib" / name for name in TORCH_LIBRARIES]
        names = sorted(
            {name for library in libraries for name, origin in imports(library) if origin == LIBCXX} | {SIZED_DELETE}
        )
        stub.write_text(
            "--- !tapi-tbd\n"
            "tbd-version: 4\n"
            "targets: [ arm64-macos ]\n"
            f"install-name: '{LIBCXX}'\n"
            f"exports:\n  - targets: [ arm64-macos ]\n    symbols: [ {', '.join(names)} ]\n"
            "...\n"
        )
    return stub


@dataclass(frozen=True)
class Build:
    torch: Path
    objects: Path
    extension: setuptools.Extension

    def compile(self, source: str) -> Path:
        target = self.objects / f"{source.replace('/', '_')}.o"
        headers = [self.torch / "include", self.torch / "include" / "torch" / "csrc" / "api" / "include"]
        headers += [sysconfig.get_paths()["include"], *self.extension.include_dirs[:1], ROOT / "tools" / "macos"]
        command = [*ZIG, "c++", *TARGET, *SYSTEM_LIBCXX, *self.extension.extra_compile_args, "-Werror"]
        command += [f"-isystem{folder}" for folder in headers] + ["-DTORCH_EXTENSION_NAME=_C", "-c", source]
        if source.endswith(".mm"):  # whichever the user's build chooses
            subprocess.run([*command, "-fobjc-arc", "-o", f"{target}.arc"], cwd=ROOT, check=True)
        subprocess.run([*command, "-o", target], cwd=ROOT, check=True)
        return target

    def link(self, objects: list[Path]) -> Path:
        target = self.objects / EXTENSION
        libraries = [self.torch / "lib" / name for name in TORCH_LIBRARIES] + [write_libcxx(self.torch)]
        # `zig cc` and not `zig c++`, which would link a libc++ of its own. Python's symbols are those of the program
        # that loads us, as in every extension; any other that is left is found below.
        command = [*ZIG, "cc", *TARGET, "-dynamiclib", "-undefined", "dynamic_lookup", *objects, *libraries]
        command += [*self.extension.extra_link_args, "-o", target]
        subprocess.run(command, cwd=ROOT, check=True)
        if missing := [
            name for name, library in imports(target) if not library and not name.startswith(("_Py", "__Py"))
        ]:
            sys.exit(f"macos_wheel: every symbol must be one that torch's wheel exports, got {', '.join(missing)}.")
        return target


def build_extension(version: str, jobs: int) -> Path:
    build = Build(fetch(version), ROOT / "build" / f"{PLATFORM}-cp{PYTHON}", extension())
    build.objects.mkdir(parents=True, exist_ok=True)
    embed_metal.write(ROOT / "build" / "shaders.cpp", metallib=False)
    with ThreadPoolExecutor(jobs) as pool:
        return build.link(list(pool.map(build.compile, build.extension.sources)))


def pack(library: Path, version: str, output: Path) -> Path:
    """The wheel: the package's files and metadata as setup.py gives them, with the library for macOS."""
    with tempfile.TemporaryDirectory() as folder:
        setup = [sys.executable, "setup.py", "--quiet"]
        subprocess.run([*setup, "build_py", "--build-lib", folder], cwd=ROOT, check=True)
        subprocess.run([*setup, "dist_info", "--output-dir", folder], cwd=ROOT, check=True)
        package, metadata = Path(folder) / "torch_metal_ops", next(Path(folder).glob("*.dist-info"))
        shutil.copy(library, package / EXTENSION)
        ours = (ROOT / "version.txt").read_text().strip()
        record = f'"""Written by setup.py."""\n\nVERSION = "{ours}"\nBUILT_WITH_TORCH = "{version}"\n'
        (package / "_build.py").write_text(record)
        tag = f"cp{PYTHON}-cp{PYTHON}-{PLATFORM}"
        (metadata / "WHEEL").write_text(
            f"Wheel-Version: 1.0\nGenerator: macos_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n"
        )
        output.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "wheel", "pack", folder, "--dest-dir", output], cwd=ROOT, check=True)
        return output / f"{metadata.stem}-{tag}.whl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="2.13.0", help="the release to build for")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many files to compile at once")
    options = parser.parse_args()
    print(pack(build_extension(options.torch, options.jobs), options.torch, options.output))


if __name__ == "__main__":
    main()
