"""The benchmark's arithmetic, its refusal to time a wrong result, and its reports. No time is asserted."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_metal_ops
from benchmarks import __main__ as benchmarks
from benchmarks import report, roof
from benchmarks.ops import gated_delta_rule, gather_qmv, sdpa
from benchmarks.ops.gated_delta_rule import GatedDeltaRule
from benchmarks.ops.gather_qmv import GatherQmv
from benchmarks.ops.sdpa import Sdpa

TINY = [
    Sdpa(Hq=4, Hkv=2, Lk=16, D=32, default=True),
    Sdpa(Hq=4, Hkv=2, Lk=16, D=32, used=5),
    Sdpa(Hq=4, Hkv=2, Lq=16, Lk=16, D=32, mask="causal", dtype=torch.bfloat16),
    Sdpa(Hq=4, Hkv=2, Lq=8, Lk=16, D=32, mask="bool"),
    Sdpa(Hq=4, Hkv=2, Lq=8, Lk=16, D=32, mask="float"),
    GatherQmv(P=2, E=4, K=128, N=64),
    GatherQmv(P=65, E=4, K=128, N=64),
    GatedDeltaRule(T=1, Hk=1, Hv=2, Dk=32, Dv=32, default=True),
    GatedDeltaRule(T=3, Hk=1, Hv=2, Dk=32, Dv=32, dtype=torch.bfloat16),
]
COLUMN = {"dtype": 1, "threads": 2, "ok": 3, "ours": 4, "cpu": 5}


@pytest.fixture
def tiny(monkeypatch):
    """The entry with small cases, a small eviction and a known roof."""
    monkeypatch.setattr(benchmarks, "CASES", TINY)
    monkeypatch.setattr(benchmarks, "measure_roof", lambda threads: roof.Roof(1e9, 1e9))
    monkeypatch.setattr("benchmarks.measure._EVICTION_BYTES", 1024)


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict]:
    file = tmp_path / "report.json"
    code = benchmarks.main([*arguments, "--threads", "1", "--seconds", "0", "--json", str(file)])
    return code, report.load(file)


def test_the_command_measures_a_case():
    command = [sys.executable, "-m", "benchmarks", "--op", "gated_delta_rule", "--case", "B1 T1 ", "--threads", "1"]
    done = subprocess.run([*command, "--seconds", "0"], cwd=report.ROOT, capture_output=True, text=True, check=True)
    head, table = done.stdout.split("\n\n")
    assert torch.__version__ in head and "(measured)" in head
    names, row = table.splitlines()
    assert names.split()[0] == "gated_delta_rule" and "✓" in row


def test_every_installed_peer_does_the_same_work(tiny, tmp_path):
    code, result = run(tmp_path, "--all", "--peers")
    assert code == 0 and len(result["rows"]) == len(TINY)
    for row in result["rows"]:
        assert row["ok"] and row["ours"]["samples"] >= 3
        assert "wrong" not in row["peers"].values(), row["peers"]
    assert all(result["rows"][0]["peers"][name] for name in ("torch gqa", "torch reshaped", "torch math"))


def test_filters(tiny, tmp_path):
    def cases(*arguments):
        return [row["case"] for row in run(tmp_path, *arguments)[1]["rows"]]

    assert cases() == [str(TINY[0]), str(TINY[7])]
    assert cases("--op", "sdpa") == [str(TINY[0])]
    assert cases("--op", "sdpa", "--all", "--case", "bfloat16") == [str(TINY[2])]
    assert cases("--case", "P65") == [str(TINY[6])]


@pytest.mark.parametrize("op", ["sdpa", "gather_qmv", "gated_delta_rule"])
def test_a_wrong_kernel_has_no_time(tiny, tmp_path, monkeypatch, op):
    right = getattr(torch_metal_ops, op)
    monkeypatch.setattr(torch_metal_ops, op, lambda *args, **kwargs: right(*args, **kwargs) * 1.1)
    code, result = run(tmp_path, "--op", op, "--all", "--peers")
    assert code == 1
    for row, cells in zip(result["rows"], report.tables(result)[op][1:], strict=True):
        assert cells[COLUMN["ok"]] == "✗"
        assert cells[COLUMN["ours"]] == cells[COLUMN["cpu"]] == "-" and row["ours"] is None
        assert set(cells[COLUMN["cpu"] : -2]) == {"-"} and not any(row["peers"].values())


def test_a_wrong_state_has_no_time(tiny, tmp_path, monkeypatch):
    right = torch_metal_ops.gated_delta_rule
    monkeypatch.setattr(
        torch_metal_ops, "gated_delta_rule", lambda **inputs: right(**inputs | {"state": inputs["state"].clone()})
    )
    code, result = run(tmp_path, "--op", "gated_delta_rule")
    assert code == 1 and not result["rows"][0]["ok"]


def test_absent_and_wrong_peers_are_marked(tiny, tmp_path, monkeypatch):
    for module in (sdpa, gather_qmv, gated_delta_rule):
        monkeypatch.setattr(module, "optional", lambda name: None)
    monkeypatch.setitem(Sdpa.peers, "torch math", lambda case, inputs: lambda: (inputs["query"] * 2,))
    code, result = run(tmp_path, "--peers")
    assert code == 0
    names, cells = report.tables(result)["sdpa"]
    assert cells[names.index("mlx")] == "-"
    assert cells[names.index("torch math")] == "✗"
    assert cells[names.index("torch gqa")].endswith("x")
    names, cells = report.tables(result)["gated_delta_rule"]
    assert {cells[names.index(name)] for name in GatedDeltaRule.peers} == {"-"}


def test_json_and_readme_say_what_was_printed(tiny, tmp_path, capsys):
    _, result = run(tmp_path, "--peers")
    assert capsys.readouterr().out.strip() == report.text(result)
    before = f"# Title\n{report.BEGIN}\nold\n{report.END}\nThe rest.\n"
    after = report.rewrite_section(before, result)
    assert after.startswith(f"# Title\n{report.BEGIN}\n") and after.endswith(f"\n{report.END}\nThe rest.\n")
    assert "old" not in after and report.rewrite_section(after, result) == after
    for table in report.tables(result).values():
        for cells in table:
            assert "| " + " | ".join(cells) + " |" in after
    with pytest.raises(ValueError, match="markers"):
        report.rewrite_section("# Title\n", result)


def test_ratios_use_cpu_time_for_one_thread_and_wall_time_for_more():
    def times(wall, cpu):
        return {key: {"median": us, "q1": us, "q3": us} for key, us in (("wall_us", wall), ("cpu_us", cpu))}

    row = {"case": "c", "dtype": "float32", "ok": True, "roof_us": 5.0}
    row |= {"ours": times(100, 10), "peers": {"peer": times(400, 20)}}
    assert report.cells(row | {"threads": 1}, ["peer"])[-3:] == ["2.00x", "5.0", "2.00x"]
    assert report.cells(row | {"threads": 2}, ["peer"])[-3:] == ["4.00x", "5.0", "20.00x"]


@pytest.mark.parametrize(
    ("case", "bytes", "flops"),
    [
        # q and out 2*4*3*8 each, k and v 2*2*5*8 each; pairs 1 + 2 + 3 a head, each 2 dot products of 8
        (Sdpa(B=2, Hq=4, Hkv=2, Lq=3, Lk=5, D=8, mask="causal"), (2 * 192 + 2 * 160) * 4, 2 * 4 * 6 * 4 * 8),
        # more queries than keys: pairs 1 + 2 + 2
        (Sdpa(Hq=1, Hkv=1, Lq=3, Lk=2, D=1, mask="causal"), (2 * 3 + 2 * 2) * 4, 5 * 4),
        (Sdpa(Hq=2, Hkv=1, Lk=100, used=10, D=4, dtype=torch.float16), (2 * 8 + 2 * 40) * 2, 2 * 10 * 4 * 4),
        (Sdpa(Hq=1, Hkv=1, Lq=2, Lk=3, D=1, mask="bool"), (2 * 2 + 2 * 3) * 4 + 6, 6 * 4),
        (Sdpa(Hq=1, Hkv=1, Lq=2, Lk=3, D=1, mask="float", dtype=torch.bfloat16), (2 * 2 + 2 * 3 + 6) * 2, 6 * 4),
        # 2 of 2 experts: 4 rows of 32 bytes, 2 scales and 2 biases; 3 rows of 64 in and 4 out, an index each
        (GatherQmv(P=3, E=2, K=64, N=4), 2 * 4 * (32 + 4 * 2) + 3 * (68 * 2 + 4), 2 * 3 * 4 * 64),
        # 3 of 5 experts
        (GatherQmv(P=3, E=5, K=64, N=4, G=64), 3 * 4 * (32 + 2 * 2) + 3 * (68 * 2 + 4), 2 * 3 * 4 * 64),
        # q and k 2*4 each, v and y 2*2*8 each, g and beta 2*2 each in float32, the state 2*8*4 twice
        (GatedDeltaRule(T=2, Hk=1, Hv=2, Dk=4, Dv=8), (16 + 64 + 8 + 128) * 4, 2 * 2 * 6 * 4 * 8),
        (GatedDeltaRule(T=2, Hk=1, Hv=2, Dk=4, Dv=8, dtype=torch.float16), 80 * 2 + 136 * 4, 2 * 2 * 6 * 4 * 8),
    ],
    ids=str,
)
def test_bytes_and_flops(case, bytes, flops):
    assert (case.bytes(), case.flops()) == (bytes, flops)


def test_roof_is_the_slower_of_both_limits(monkeypatch):
    assert roof.Roof(10.0, 1.0).seconds(bytes=100, flops=2) == 10.0
    assert roof.Roof(10.0, 1.0).seconds(bytes=100, flops=20) == 20.0
    monkeypatch.setattr(roof, "_READ_BYTES", 1 << 20)
    monkeypatch.setattr(roof, "_STEPS", 1000)
    measured = roof.measure_roof(2)
    assert measured.bytes_per_second > 0 and measured.flops_per_second > 0


def test_cases_are_told_apart():
    cases = [(case.op, str(case), case.dtype) for case in benchmarks.CASES]
    assert len(set(cases)) == len(cases) and all(
        any(case.default and case.op == op for case in benchmarks.CASES) for op, *_ in cases
    )
