"""What importing the package does to a process, and what it says when it cannot."""

import ctypes
import re
import shutil
import struct
import sys
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline

import torch_metal_ops
from interpreter import PACKAGE, output_of, run_python

EXTENSION = Path(torch_metal_ops._C.__file__)
SHIMS = {
    re.search(r"aoti_torch_\w+", declaration).group()
    for declarations in torch_metal_ops.custom_ops_to_c_shims.values()
    for declaration in declarations
}
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file")


# ---- the library


def elf_sections(data: bytes) -> list[tuple]:
    """(name, type, flags, address, offset, size, link, ...) of each section of a 64-bit little-endian ELF file."""
    assert data[:6] == b"\x7fELF\x02\x01"
    (table,), (size, count) = struct.unpack_from("<Q", data, 0x28), struct.unpack_from("<HH", data, 0x3A)
    return [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]


def string_at(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


def exported_symbols(data: bytes) -> set[str]:
    """The names that the dynamic symbol table defines."""
    sections = elf_sections(data)
    (table,) = [section for section in sections if section[1] == 11]  # SHT_DYNSYM
    names = sections[table[6]][4]
    symbols = [struct.unpack_from("<IBBHQQ", data, table[4] + i) for i in range(0, table[5], 24)]
    return {
        string_at(data, names + name) for name, info, _, section, _, _ in symbols if section != 0 and info >> 4 != 0
    }


def soname(data: bytes) -> str:
    sections = elf_sections(data)
    (dynamic,) = [section for section in sections if section[1] == 6]  # SHT_DYNAMIC
    entries = [struct.unpack_from("<QQ", data, dynamic[4] + i) for i in range(0, dynamic[5], 16)]
    (name,) = [value for tag, value in entries if tag == 14]  # DT_SONAME
    return string_at(data, sections[dynamic[6]][4] + name)


@linux
def test_exports_exactly_the_shims():
    assert len(SHIMS) == 2 * len(torch_metal_ops.custom_ops_to_c_shims)
    assert exported_symbols(EXTENSION.read_bytes()) == SHIMS | {"PyInit__C"}


@linux
def test_soname():
    """An AOTInductor package that lists the library finds the one that is loaded by this name."""
    assert soname(EXTENSION.read_bytes()) == "libtorch_metal_ops.so"


def test_shims_are_visible_to_libraries_loaded_later():
    for shim in SHIMS:
        assert ctypes.cast(getattr(ctypes.CDLL(None), shim), ctypes.c_void_p).value


def test_import_brings_in_nothing_heavy():
    """Importing costs the extension and our own modules; torch's compiler is left to those who compile."""
    code = "import sys, torch; before = set(sys.modules); import torch_metal_ops; print(*set(sys.modules) - before)"
    assert not {name for name in output_of(code).split() if name.split(".")[0] not in ("torch_metal_ops", "executorch")}


# ---- failures


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that a test may break."""
    return Path(shutil.copytree(PACKAGE, tmp_path / "torch_metal_ops", ignore=shutil.ignore_patterns("__pycache__")))


def import_error(package: Path, before: str = "") -> str:
    """The ImportError of importing the package in a new process, with what differs between machines replaced."""
    code = f"{before}\ntry:\n    import torch_metal_ops\nexcept ImportError as error:\n    print(error)"
    result = run_python("-c", code, packages=package.parent)
    assert (result.returncode, result.stderr) == (0, "")
    text = result.stdout.strip().replace(str(package), "<package>")
    return text.replace(EXTENSION.name, "<_C>").replace(torch.__version__, "<torch>")


def test_no_build_record(package):
    (package / "_build.py").unlink()
    assert_expected_inline(
        import_error(package),
        """torch_metal_ops: its extension must be built, got no build record (_build.py). Reinstall it in its source folder, with the torch it is to run with: pip install --no-build-isolation --no-deps --force-reinstall .""",
    )


def test_another_minor_release_of_torch(package):
    (package / "_build.py").write_text('VERSION = "0.1.0"\nBUILT_WITH_TORCH = "2.12.1+cpu"\n')
    assert_expected_inline(
        import_error(package),
        """torch_metal_ops: its extension was built for torch 2.12.1+cpu, got torch <torch>. Reinstall it in its source folder, with the torch it is to run with: pip install --no-build-isolation --no-deps --force-reinstall .""",
    )


def test_another_patch_release_of_torch_loads(package):
    major, minor = torch.__version__.split(".")[:2]
    (package / "_build.py").write_text(f'VERSION = "0.1.0"\nBUILT_WITH_TORCH = "{major}.{minor}.99"\n')
    assert import_error(package) == ""


def test_no_extension(package):
    (package / EXTENSION.name).unlink()
    assert_expected_inline(
        import_error(package),
        """torch_metal_ops: its extension, built for torch <torch>, must be <_C>, got no extension. Reinstall it in its source folder, with the torch it is to run with: pip install --no-build-isolation --no-deps --force-reinstall .""",
    )


def test_extension_for_another_python(package):
    (package / EXTENSION.name).rename(package / "_C.cpython-39-x86_64-linux-gnu.so")
    assert_expected_inline(
        import_error(package),
        """torch_metal_ops: its extension, built for torch <torch>, must be <_C>, got _C.cpython-39-x86_64-linux-gnu.so. Reinstall it in its source folder, with the torch it is to run with: pip install --no-build-isolation --no-deps --force-reinstall .""",
    )


@linux
def test_extension_cut_in_its_header(package):
    (package / EXTENSION.name).write_bytes(EXTENSION.read_bytes()[:40])
    assert_expected_inline(
        import_error(package),
        """torch_metal_ops: its extension was built for torch <torch> and could not be loaded with torch <torch>, got <package>/<_C>: file too short. Reinstall it in its source folder, with the torch it is to run with: pip install --no-build-isolation --no-deps --force-reinstall .""",
    )


@linux
def test_extension_that_needs_a_symbol_torch_has_not(package):
    """What an extension that was built for another torch runs into where the version says nothing."""
    data = EXTENSION.read_bytes()
    assert b"empty_memory_format4call" in data
    (package / EXTENSION.name).write_bytes(data.replace(b"empty_memory_format4call", b"empty_memory_forgot4call"))
    text = import_error(package)
    assert "its extension was built for torch <torch> and could not be loaded with torch <torch>, got " in text
    assert "undefined symbol: _ZN2at4_ops19empty_memory_forgot4call" in text


OTHER_SCHEMA = """
import torch
library = torch.library.Library("metal", "FRAGMENT")
library.define("gather_qmv(Tensor x, Tensor w, Tensor indices) -> Tensor")
"""


def test_another_schema_under_our_name(package):
    """An ImportError, not the abort of an exception thrown while a library is loaded."""
    assert_expected_inline(
        import_error(package, before=OTHER_SCHEMA),
        """torch_metal_ops: the schema of metal::gather_qmv must be metal::gather_qmv(Tensor x, Tensor w, Tensor scales, Tensor biases, Tensor expert_indices, SymInt group_size) -> Tensor, got metal::gather_qmv(Tensor x, Tensor w, Tensor indices) -> Tensor from another package. Update or uninstall that package.""",
    )


def test_a_failed_import_fails_again(package):
    again = f"{OTHER_SCHEMA}\ntry:\n    import torch_metal_ops\nexcept ImportError:\n    pass"
    assert import_error(package, before=again) == import_error(package, before=OTHER_SCHEMA) != ""


def test_main_prints_the_sentence_without_a_traceback(package):
    (package / "_build.py").unlink()
    for arguments in ([], ["--json"]):
        result = run_python("-m", "torch_metal_ops", *arguments, packages=package.parent)
        assert (result.returncode, result.stdout) == (1, "")
        assert "torch_metal_ops: its extension must be built, got no build record (_build.py). Rein" in result.stderr
        assert "Traceback" not in result.stderr


# ---- another package that was first


SAME_SCHEMA = """
import torch
library = torch.library.Library("metal", "FRAGMENT")
library.define("gather_qmv(Tensor x, Tensor w, Tensor scales, Tensor biases, Tensor expert_indices, SymInt group_size) -> Tensor")
for key in ("CompositeExplicitAutograd", "Autograd"):
    library.impl("gather_qmv", lambda *args: args[0] * 0 + 7, key)
torch.library.register_fake("metal::gather_qmv", lambda *args: args[0].new_empty(7), lib=library)
"""

USE_GATHER_QMV = """
torch.set_warn_always(True)
import torch_metal_ops
from torch._subclasses import FakeTensorMode
weights = torch_metal_ops.quantize_affine(torch.randn(4, 8, 64), 4, 32)
args = torch.randn(3, 64), *weights, torch.tensor([[0, 1], [2, 3], [3, -1]]), 32
torch.testing.assert_close(torch_metal_ops.gather_qmv(*args), torch_metal_ops.reference.gather_qmv(*args).float())
with FakeTensorMode() as mode:
    fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    print(tuple(torch_metal_ops.gather_qmv(*fakes).shape))
print(tuple(torch_metal_ops.gather_qmv(*[arg.to("meta") if isinstance(arg, torch.Tensor) else arg for arg in args]).shape))
"""


def test_the_same_schema_under_our_name():
    """Our kernels go before those of a package that was first, under tracing too, and without a warning."""
    assert output_of(SAME_SCHEMA + USE_GATHER_QMV) == "(3, 2, 8)\n(3, 2, 8)\n"
