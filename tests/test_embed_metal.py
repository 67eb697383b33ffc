"""tools/embed_metal.py: the shaders as the build takes them in."""

import re
import sys
from pathlib import Path

import expecttest
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import embed_metal  # noqa: E402


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A folder of shaders: one library with two headers, of which the second includes the first."""
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "one.h").write_text("#pragma once\nint one;\n")
    (tmp_path / "two.h").write_text('#include "common/one.h"\nint two;\n')
    (tmp_path / "all.metal").write_text(
        '#include <metal_stdlib>\n#include "two.h"\n#include "common/one.h"\nint all;\n'
    )
    monkeypatch.setattr(embed_metal, "KERNELS", tmp_path)
    return tmp_path


def test_flatten_takes_each_header_once_and_keeps_lines(kernels):
    expecttest.assert_expected_inline(
        embed_metal.flatten(kernels / "all.metal"),
        """\
#line 1 "all.metal"
#include <metal_stdlib>
#line 1 "two.h"
#line 1 "common/one.h"

int one;
#line 2 "two.h"
int two;
#line 3 "all.metal"

int all;
""",
    )


def test_flatten_names_a_header_that_is_missing(kernels):
    (kernels / "all.metal").write_text('#include "three.h"\n')
    with pytest.raises(FileNotFoundError, match=r"all\.metal includes three\.h"):
        embed_metal.flatten(kernels / "all.metal")


def test_only_ascii_goes_to_the_compiler(kernels):
    (kernels / "all.metal").write_text("// 8\u00d78\n", encoding="utf-8")
    with pytest.raises(UnicodeDecodeError):
        embed_metal.flatten(kernels / "all.metal")


def test_our_libraries_need_no_header_of_ours_once_flattened():
    assert len(embed_metal.libraries()) >= 5
    for path in embed_metal.libraries():
        assert not re.search(r'#\s*include\s*"', embed_metal.flatten(path)), path.name


def test_definitions_name_every_library(kernels):
    text = embed_metal.definitions(metallib=False)
    assert '{"all", k_all_source, k_all_metallib, 0},' in text and "kShaderCount = 1;" in text
    assert embed_metal.flatten(kernels / "all.metal") in text


def test_write_leaves_an_unchanged_file_alone(kernels, tmp_path):
    output = tmp_path / "build" / "shaders.cpp"
    embed_metal.write(output, metallib=False)
    before = output.stat().st_mtime_ns
    embed_metal.write(output, metallib=False)
    assert output.stat().st_mtime_ns == before
    (kernels / "all.metal").write_text("int other;\n")
    embed_metal.write(output, metallib=False)
    assert "int other;" in output.read_text()


@pytest.mark.parametrize(("wish", "found", "metallib"), [("source", True, False), ("metallib", False, True)])
def test_the_environment_chooses(wish, found, metallib, monkeypatch):
    monkeypatch.setenv("TORCH_METAL_OPS_SHADERS", wish)
    monkeypatch.setattr(embed_metal, "metal_compiler", lambda: found)
    assert embed_metal.choose_metallib() is metallib


@pytest.mark.parametrize("found", [True, False])
def test_else_the_machine_does(found, monkeypatch, capsys):
    monkeypatch.delenv("TORCH_METAL_OPS_SHADERS", raising=False)
    monkeypatch.setattr(embed_metal, "metal_compiler", lambda: found)
    assert embed_metal.choose_metallib() is found
    assert ("the shaders are compiled on first use" in capsys.readouterr().out) is not found


def test_another_wish_is_an_error(monkeypatch):
    monkeypatch.setenv("TORCH_METAL_OPS_SHADERS", "air")
    with pytest.raises(SystemExit) as error:
        embed_metal.choose_metallib()
    expecttest.assert_expected_inline(
        str(error.value),
        """torch_metal_ops: TORCH_METAL_OPS_SHADERS must be source or metallib, got 'air'. Unset it to let the build choose.""",
    )


def test_there_is_no_apple_compiler_without_xcrun(monkeypatch):
    monkeypatch.setattr(embed_metal.shutil, "which", lambda name: None)
    assert embed_metal.metal_compiler() is False
