"""A build that cannot work says so in one sentence."""

import subprocess
import sys
from pathlib import Path

import expecttest
import pytest

ROOT = Path(__file__).parents[1]

HIDE = """
import runpy, sys
sys.modules.update(dict.fromkeys({hidden}))
sys.argv = ["setup.py", "--version"]
runpy.run_path("setup.py", run_name="__main__")
"""


def setup_without(*hidden: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDE.format(hidden=hidden)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_without_torch():
    result = setup_without("torch")
    assert result.returncode == 1
    expecttest.assert_expected_inline(
        result.stderr.strip(),
        """torch_metal_ops: building needs torch in the environment that builds it, got none there. Install torch, setuptools, wheel, ninja and pybind11 first, then: pip install --no-build-isolation .""",
    )


@pytest.mark.parametrize("hidden", ["ninja", "pybind11"])
def test_without_a_build_tool(hidden):
    result = setup_without(hidden)
    assert result.returncode == 1
    assert f"building needs {hidden} in the environment" in result.stderr


def test_with_everything():
    result = setup_without()
    assert (result.returncode, result.stdout.strip()) == (0, (ROOT / "version.txt").read_text().strip())
