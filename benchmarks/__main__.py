"""python -m benchmarks: times the ops beside their peers, after each result was held to the float64 reference.

    python -m benchmarks --peers                                the default rows, some three minutes
    python -m benchmarks --peers --op gather_qmv --case P512    the rows of an op whose text contains P512
    python -m benchmarks --peers --all --json benchmarks/results/cpu.json
    python -m benchmarks --readme benchmarks/results/cpu.json   the README's tables from that file

A peer's column says how many times longer it takes than ours: medians of calls made in turn, each from cold caches, in
CPU time for one thread and wall time for more. ``-``: not installed, or does not do this case; ``✗``: a wrong result.
``over roof`` is our time over the least possible one: bytes over the read bandwidth, or flops over the float32 FMA
peak, both measured in the same run (benchmarks/roof.py).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.measure import measure
from benchmarks.ops import Case, gated_delta_rule, gather_qmv, sdpa
from benchmarks.roof import measure_roof

CASES: list[Case] = [*sdpa.CASES, *gather_qmv.CASES, *gated_delta_rule.CASES]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--op", choices=sorted({case.op for case in CASES}), help="only this op")
    parser.add_argument("--case", default="", metavar="TEXT", help='only rows whose "case dtype" contains this text')
    parser.add_argument("--all", action="store_true", help="every row, not only the default ones")
    parser.add_argument("--peers", action="store_true", help="measure the peers too")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads (default: 1 2)")
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each row and contender (default: 0.3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report to this file")
    parser.add_argument(
        "--readme", type=Path, metavar="FILE", help="write the README's tables from this report; measures nothing"
    )
    return parser.parse_args(argv)


def _wanted(options: argparse.Namespace) -> list[Case]:
    cases = [case for case in CASES if options.op in (None, case.op) and options.case in f"{case} {case.dtype}"]
    # A filter that names no default row still names something.
    default = [case for case in cases if case.default]
    return cases if options.all or not default else default


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    if options.readme:
        readme = report.ROOT / "README.md"
        readme.write_text(report.rewrite_section(readme.read_text(), report.load(options.readme)))
        return 0
    roofs = {threads: measure_roof(threads) for threads in options.threads}
    result: dict[str, Any] = {"machine": report.describe(roofs), "rows": []}
    for case in _wanted(options):
        print(f"{case.op} {case} {case.dtype}", file=sys.stderr)
        result["rows"].extend(measure(case, roofs, options.peers, options.seconds))
    print(report.text(result))
    if options.json:
        report.save(result, options.json)
    return 0 if all(row["ok"] for row in result["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
