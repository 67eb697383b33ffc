"""Runs Python in a process of its own, where what a process can do only once (importing, loading) happens anew."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch_metal_ops

# An editable install answers for the submodules of every copy of the package. Python runs this before anything else.
_NO_EDITABLE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if not getattr(f, "__module__", "").startswith("__editable__")]
"""

PACKAGE = Path(torch_metal_ops.__file__).parent


def run_python(*arguments: str, packages: Path = PACKAGE.parent) -> subprocess.CompletedProcess[str]:
    """``python *arguments`` with the torch_metal_ops that lies in ``packages``, and no other."""
    with tempfile.TemporaryDirectory() as folder:  # Python looks for packages in the current folder too
        (Path(folder) / "sitecustomize.py").write_text(_NO_EDITABLE)
        return subprocess.run(
            [sys.executable, *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([folder, str(packages)])},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )


def output_of(code: str, *, silent: bool = True) -> str:
    """What a script prints; it must end well and, if silent, write nothing to stderr: no warning either."""
    result = run_python("-c", code)
    assert result.returncode == 0, result.stderr
    assert not (silent and result.stderr), result.stderr
    return result.stdout
