"""The acceptance test that a Mac's owner runs, here on the simulated device."""

import sys

import pytest
import torch

import simulator
import torch_metal_ops
from torch_metal_ops import _C, _metal_check
from torch_metal_ops.__main__ import main

pytestmark = pytest.mark.skipif(not torch.backends.mps.is_available(), reason="torch here has no mps device")

ONE_OF_EACH = [("sdpa", "decode Dk64 Dv64"), ("gather_qmv", "grouped 4 bits"), ("gated_delta_rule", "step Dk128")]


@pytest.fixture
def few(monkeypatch):
    """The table of one case an op, of small sizes."""
    monkeypatch.setattr(_metal_check, "CASES", {key: _metal_check.CASES[key] for key in ONE_OF_EACH})
    return lambda: list(_metal_check.rows(checked=2, timed=1, calls=1))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only the simulated device knows what was launched")
def test_every_kernel_is_in_the_table():
    """The whole table, with sizes as small as reach the same kernels."""
    before = simulator.mps.launched.copy()
    simulator.mps.launched.clear()
    try:
        found = list(_metal_check.rows(checked=2, timed=1, calls=1))
        assert {"/".join(kernel) for kernel in simulator.mps.launched} == set(_C.metal_kernels())
    finally:
        simulator.mps.launched.update(before)
    assert all(row["ok"] for row in found), _metal_check.table(found)


def test_it_takes_less_than_a_minute():
    """Of the slowest chip, an M1, at a fifth of its 68 GB/s and 2.6 TFLOP/s, and without the shaders' compilation."""
    work = {"GB/s": 0.0, "GFLOP/s": 0.0}
    for make in _metal_check.CASES.values():
        for dtype in _metal_check._DTYPES:
            call = make(_metal_check._TIMED, dtype, "cpu")
            work[call.unit] += (1 + _metal_check._CALLS) * call.work / 1e9
    assert work["GB/s"] / (68 / 5) + work["GFLOP/s"] / (2600 / 5) < 30


def test_right_kernels(few):
    found = few()
    assert [(row["op"], row["case"]) for row in found] == [key for key in ONE_OF_EACH for _ in range(3)]
    assert all(row["ok"] and row["rate"] > 0 for row in found), _metal_check.table(found)
    text = _metal_check.table(found)
    assert text.splitlines()[2].startswith("| sdpa decode Dk64 Dv64 | ok ")
    assert text.endswith("9 of 9 right")


def test_a_wrong_kernel_shows(few, monkeypatch):
    monkeypatch.setattr(torch_metal_ops, "sdpa", lambda *args, **kwargs: torch.ops.metal.sdpa(*args, **kwargs) * 1.5)
    text = _metal_check.table(few())
    assert "| sdpa decode Dk64 Dv64 | WRONG | WRONG | WRONG |" in text
    assert "6 of 9 right\n- sdpa decode Dk64 Dv64 float32: error " in text


def test_a_kernel_that_cannot_run_does_not_hide_the_others(few, monkeypatch):
    def fails(*args):
        raise RuntimeError("program_source:1: error: no such thing\nand more")

    monkeypatch.setattr(torch_metal_ops, "gather_qmv", fails)
    text = _metal_check.table(few())
    assert "6 of 9 right\n- gather_qmv grouped 4 bits float32: program_source:1: error: no such thing\n" in text
    assert "| gated_delta_rule step Dk128 | ok " in text


def test_the_report_has_the_table_and_fails_with_it(few, monkeypatch, capsys):
    found = few()
    monkeypatch.setattr(_metal_check, "rows", lambda: found)
    assert main([]) == 0
    assert _metal_check.table(found) in capsys.readouterr().out
    found[0] |= {"ok": False, "detail": "error 1 > 0"}
    assert main([]) == 1
    assert "- sdpa decode Dk64 Dv64 float32: error 1 > 0" in capsys.readouterr().out
