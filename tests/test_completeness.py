"""An op is whole: the fixed list of files that CONTRIBUTING gives, for every schema of csrc/core/schemas.h."""

import re
from pathlib import Path

import pytest
import torch

import torch_metal_ops

ROOT = Path(__file__).parents[1]
OPS = re.findall(r'"metal::(\w+)\(', (ROOT / "csrc/core/schemas.h").read_text())

FILES = [
    "csrc/ops/{op}.h",
    "csrc/cpu/{op}.cpp",
    "csrc/cpu/kernels/{op}_params.h",
    "csrc/meta/{op}.cpp",
    "csrc/mps/{op}.mm",
    "csrc/mps/kernels/{op}_params.h",
    "csrc/ops/{op}_kernels.h",
    "csrc/shim/{op}.cpp",
    "torch_metal_ops/ops/{op}.py",
    "torch_metal_ops/reference/{op}.py",
    "tests/cases/{op}.py",
    "tests/test_{op}.py",
    "benchmarks/ops/{op}.py",
]


def test_there_are_ops():
    assert len(OPS) == len(set(OPS)) == len(torch_metal_ops.custom_ops_to_c_shims) >= 3


@pytest.mark.parametrize("op", OPS)
def test_files(op):
    missing = [name for name in (file.format(op=op) for file in FILES) if not (ROOT / name).is_file()]
    assert not missing


@pytest.mark.parametrize("op", OPS)
def test_kernels(op):
    for key in ("CPU", "Meta", "Autograd"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"metal::{op}", key), key
    assert torch.Tag.pt2_compliant_tag in getattr(torch.ops.metal, op).default.tags


@pytest.mark.parametrize("op", OPS)
def test_public(op):
    for function in (getattr(torch_metal_ops, op), getattr(torch_metal_ops.reference, op)):
        assert function.__doc__
    assert op in torch_metal_ops.__all__
    assert f"`metal::{op}`" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("op", OPS)
def test_every_rule_has_an_error_row(op):
    """Each sentence that a check can say begins an expected text in the op's error table."""
    source = re.sub(r'"\s*\n\s*"', "", (ROOT / f"csrc/ops/{op}.h").read_text())
    rules = re.findall(rf'"({op}: [^"]+)"', source)
    asserted = (ROOT / f"tests/test_{op}.py").read_text()
    missing = [rule for rule in rules if rule.split(", got")[0].rstrip(" =[") not in asserted]
    assert rules and not missing


def test_no_link_of_the_readme_is_broken():
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text()
        for target in re.findall(r"`((?:csrc|tests|tools|examples|benchmarks|torch_metal_ops)/[\w/.-]*\w\.\w+)`", text):
            assert (ROOT / target).exists(), f"{name} names {target}"
