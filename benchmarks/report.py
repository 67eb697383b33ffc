"""The report as a table for the terminal, as JSON, and as Markdown for the README. All three hold the same dict."""

import json
import platform
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import torch_metal_ops
from benchmarks.roof import Roof

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _processor() -> str:
    if platform.system() == "Darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string")
    found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def describe(roofs: dict[int, Roof]) -> dict[str, Any]:
    """What the figures were measured on and with."""
    return {
        "processor": f"{_processor()} {torch.backends.cpu.get_cpu_capability()}",
        "system": platform.platform(terse=True),
        "torch": torch.__version__,
        "torch_metal_ops": f"{torch_metal_ops.__version__}+{_output('git', 'describe', '--always', '--dirty')}",
        "roofs": {str(threads): asdict(roof) for threads, roof in roofs.items()},
    }


def header(machine: dict[str, Any]) -> str:
    roofs = ", ".join(
        f"{threads} thread{'s' * (threads != '1')}: read {roof['bytes_per_second'] / 1e9:.1f} GB/s, "
        f"FMA {roof['flops_per_second'] / 1e9:.0f} GFLOP/s"
        for threads, roof in machine["roofs"].items()
    )
    versions = f"torch {machine['torch']} | torch_metal_ops {machine['torch_metal_ops']}"
    return f"{machine['processor']} | {machine['system']} | {versions} | {roofs} (measured)"


def clock(threads: int) -> str:
    """The clock of ratios: CPU time leaves other processes out, but with more threads it counts their waiting too."""
    return "cpu_us" if threads == 1 else "wall_us"


def _time(times: dict[str, float]) -> str:
    digits = 0 if times["median"] >= 100 else 1
    return f"{times['median']:.{digits}f} ({times['q1']:.{digits}f}-{times['q3']:.{digits}f})"


def _peer(row: dict[str, Any], name: str) -> str:
    peer, key = row["peers"].get(name), clock(row["threads"])
    if peer is None or peer == "wrong" or row["ours"] is None:
        return "✗" if peer == "wrong" else "-"
    return f"{peer[key]['median'] / row['ours'][key]['median']:.2f}x"


def cells(row: dict[str, Any], peers: list[str]) -> list[str]:
    ours, roof = row["ours"], row["roof_us"]
    start = [row["case"], row["dtype"], str(row["threads"]), "✓" if row["ok"] else "✗"]
    if ours is None:
        return [*start, "-", "-", *("-" for _ in peers), f"{roof:.1f}", "-"]
    times = [_time(ours["wall_us"]), _time(ours["cpu_us"])]
    over = ours[clock(row["threads"])]["median"] / roof
    return [*start, *times, *(_peer(row, name) for name in peers), f"{roof:.1f}", f"{over:.2f}x"]


def tables(report: dict[str, Any]) -> dict[str, list[list[str]]]:
    """A table an op, as peers differ; its first line names the columns."""
    tables = {}
    for op in dict.fromkeys(row["op"] for row in report["rows"]):
        rows = [row for row in report["rows"] if row["op"] == op]
        peers = list(rows[0]["peers"])
        names = [op, "dtype", "threads", "ok", "ours us (IQR)", "CPU us (IQR)", *peers, "roof us", "over roof"]
        tables[op] = [names] + [cells(row, peers) for row in rows]
    return tables


def text(report: dict[str, Any]) -> str:
    blocks = [header(report["machine"])]
    for table in tables(report).values():
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def markdown(report: dict[str, Any]) -> str:
    blocks = [header(report["machine"])]
    for table in tables(report).values():
        lines = ["| " + " | ".join(line) + " |" for line in table]
        blocks.append("\n".join([lines[0], "|---" * len(table[0]) + "|", *lines[1:]]))
    return "\n\n".join(blocks)


def rewrite_section(document: str, report: dict[str, Any]) -> str:
    """The document with the report between its markers."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"benchmarks: the document must hold the markers {BEGIN} and {END}, got neither or one. Add them."
        )
    return f"{before}{BEGIN}\n{markdown(report)}\n{END}{after}"


def save(report: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def load(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text())
    return report
