"""``python -m torch_metal_ops``."""

import json
import re

import pytest
import torch

import torch_metal_ops
from interpreter import run_python
from torch_metal_ops import _metal_check
from torch_metal_ops.__main__ import _CHECKS, main


@pytest.fixture(autouse=True)
def without_the_metal_table(monkeypatch):
    """It is for a GPU, and has a test of its own: test_metal_check.py."""
    monkeypatch.setattr(_metal_check, "rows", lambda: [])


def test_every_op_is_checked():
    assert set(_CHECKS) == {op._opname for op in torch_metal_ops.custom_ops_to_c_shims}


def test_text():
    result = run_python("-m", "torch_metal_ops")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.search(rf"^built with torch +{re.escape(torch.__version__)}$", result.stdout, re.M)
    assert re.search(r"^  gather_qmv +CPU .*Meta Autograd$", result.stdout, re.M)
    assert re.search(r"^  sdpa +cpu +bfloat16( +[\d.e+-]+){3}  ok$", result.stdout, re.M)
    assert "WRONG" not in result.stdout


def test_json(capsys):
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["torch_metal_ops"] == torch_metal_ops.__version__
    assert found["kernels"]["sdpa"][0] == "CPU"
    names = {"sdpa", "gather_qmv", "gated_delta_rule", "gated_delta_rule state"}
    on_cpu = {(row["op"], row["dtype"]) for row in found["checks"] if row["device"] == "cpu"}
    assert on_cpu == {(name, dtype) for name in names for dtype in ("float32", "float16", "bfloat16")}
    assert all(row["error"] <= row["limit"] and row["ms"] > 0 and row["ok"] for row in found["checks"])


def one_percent_off(*args, **kwargs):
    return torch.ops.metal.sdpa(*args, **kwargs) * 1.01


def one_nan(*args, **kwargs):
    y = torch.ops.metal.sdpa(*args, **kwargs)
    y[0, 0, 0, 0] = float("nan")
    return y


@pytest.mark.parametrize("wrong", [one_percent_off, one_nan])
def test_a_wrong_kernel_shows(wrong, monkeypatch, capsys):
    monkeypatch.setattr(torch_metal_ops, "sdpa", wrong)
    assert main([]) == 1
    rows = re.findall(r"^  (\S+) .*  (ok|WRONG)$", capsys.readouterr().out, re.M)
    assert ("sdpa", "WRONG") in rows and ("gather_qmv", "ok") in rows
    assert all(verdict == "ok" for op, verdict in rows if op != "sdpa")
    assert main(["--json"]) == 1
    assert not all(row["ok"] for row in json.loads(capsys.readouterr().out)["checks"])


def test_a_state_that_is_left_alone_shows(monkeypatch, capsys):
    def forgetful(q, k, v, g, beta, state):
        return torch.ops.metal.gated_delta_rule(q, k, v, g, beta, state.clone())

    monkeypatch.setattr(torch_metal_ops, "gated_delta_rule", forgetful)
    assert main([]) == 1
    assert re.search(r"^  gated_delta_rule state .*WRONG$", capsys.readouterr().out, re.M)
