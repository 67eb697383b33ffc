"""What tools/macos_wheel.py built, of which nothing can be run here: .ci/macos builds it and says where it is."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import torch_metal_ops

lief = pytest.importorskip("lief")

WHEEL = os.environ.get("MACOS_WHEEL", "")
ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not WHEEL, reason="MACOS_WHEEL is not set: .ci/macos builds the wheel and sets it")

PYTHON = f"{sys.version_info.major}{sys.version_info.minor}"
LIBRARY = f"torch_metal_ops/_C.cpython-{PYTHON}-darwin.so"
TORCH_LIBRARIES = {f"@rpath/{name}.dylib" for name in ("libtorch_cpu", "libtorch_python", "libc10")}
SYSTEM_LIBRARIES = {"/usr/lib/libSystem.B.dylib", "/usr/lib/libc++.1.dylib"}
LINKER_SYMBOLS = {"___dso_handle", "__mh_dylib_header"}  # zig's linker exports these of every library
# What an extension takes from the program that loads it.
PYTHON_SYMBOL = ("_Py", "__Py")


def torch_folder() -> Path:
    sys.path.insert(0, str(ROOT / "tools"))
    import macos_wheel

    return macos_wheel.fetch("2.13.0") / "lib"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(WHEEL) as wheel:
        binaries = lief.MachO.parse(wheel.extract(LIBRARY, folder))
        yield binaries.at(0)


@pytest.fixture(scope="module")
def imported(library) -> dict[str, set[str]]:
    """The symbols that are taken from each library; "" for those that any library may have."""
    loaded = [dylib.name for dylib in library.libraries if dylib.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB]
    found: dict[str, set[str]] = {}
    for symbol in library.imported_symbols:
        ordinal = symbol.library_ordinal
        found.setdefault(loaded[ordinal - 1] if 0 < ordinal <= len(loaded) else "", set()).add(symbol.name)
    return found


@pytest.fixture(scope="module")
def exported(library) -> set[str]:
    return {symbol.name for symbol in library.exported_symbols}


def test_it_is_for_apple_silicon_from_macos_14_on(library):
    assert library.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
    assert library.build_version.platform == lief.MachO.BuildVersion.PLATFORMS.MACOS
    assert list(library.build_version.minos) == [14, 0, 0]


def test_it_can_be_linked_with_and_found_again(library):
    assert library.header.file_type == lief.MachO.Header.FILE_TYPE.DYLIB
    names = [dylib.name for dylib in library.libraries if dylib.command == lief.MachO.LoadCommand.TYPE.ID_DYLIB]
    assert names == ["@rpath/libtorch_metal_ops.dylib"]
    assert [command.path for command in library.rpaths] == ["@loader_path/../torch/lib"]


def test_it_loads_torch_and_the_system_only(library):
    loaded = {dylib.name for dylib in library.libraries} - {"@rpath/libtorch_metal_ops.dylib"}
    assert loaded - SYSTEM_LIBRARIES <= TORCH_LIBRARIES
    assert {"@rpath/libtorch_cpu.dylib", "@rpath/libc10.dylib", "/usr/lib/libc++.1.dylib"} <= loaded


def test_torch_exports_what_is_taken_from_it(imported):
    folder = torch_folder()
    taken = {origin: names for origin, names in imported.items() if origin in TORCH_LIBRARIES}
    assert any("MetalKernelFunction" in name for name in taken["@rpath/libtorch_cpu.dylib"])
    for origin, names in taken.items():
        binaries = lief.MachO.parse(folder / Path(origin).name)
        assert names <= {symbol.name for symbol in binaries.at(0).exported_symbols}, origin


def test_python_has_the_rest(imported):
    assert imported[""] and {name for name in imported[""] if not name.startswith(PYTHON_SYMBOL)} == set()


def test_it_exports_the_shims_and_the_module(library, exported):
    shims = {f"_aoti_torch_{device}_{op._opname}" for device in ("cpu", "mps") for op in ops()}
    weak_definition = 0x80  # N_WEAK_DEF
    weak = {
        symbol.name
        for symbol in library.symbols
        if symbol.description & weak_definition  # of headers: one for the whole process
    }
    assert exported - weak - LINKER_SYMBOLS == {"_PyInit__C", *shims}
    # Ours are hidden; the rest are torch's, of which a second copy would be another class or variable.
    assert not {name for name in exported & weak if "3tmo" in name}


def ops():
    return torch_metal_ops.custom_ops_to_c_shims


def test_the_shaders_are_in_it(library):
    content = b"".join(
        bytes(section.content) for section in library.sections if section.name == "__const" or "cstring" in section.name
    )
    for path in (ROOT / "csrc/mps/kernels").glob("*.metal"):
        assert f'#line 1 "{path.name}"'.encode() in content, path.name


def test_metadata():
    with zipfile.ZipFile(WHEEL) as wheel:
        names = wheel.namelist()
        assert wheel.testzip() is None
        folder = f"torch_metal_ops-{torch_metal_ops.__version__}.dist-info"
        assert f"Tag: cp{PYTHON}-cp{PYTHON}-macosx_14_0_arm64\n" in wheel.read(f"{folder}/WHEEL").decode()
        metadata = wheel.read(f"{folder}/METADATA").decode()
        assert "Name: torch-metal-ops\n" in metadata and "Requires-Dist: torch>=2.13\n" in metadata
        assert 'BUILT_WITH_TORCH = "2.13.0"' in wheel.read("torch_metal_ops/_build.py").decode()
        assert [name for name in names if name.endswith((".so", ".dylib"))] == [LIBRARY]
        for path in (ROOT / "torch_metal_ops").rglob("*.py"):
            assert path.relative_to(ROOT).as_posix() in names


def test_pip_takes_it_for_a_mac(tmp_path):
    target = ["--target", tmp_path, "--no-deps", "--only-binary=:all:", "--python-version", PYTHON]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *target, "--platform", "macosx_15_0_arm64", WHEEL]
    subprocess.run(command, check=True)
    assert (tmp_path / LIBRARY).is_file()
