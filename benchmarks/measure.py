"""Times alternatives alternately in one run, and holds our result to the float64 reference first."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.ops import Case, Inputs, Results, to_torch
from benchmarks.roof import Roof
from tests.tolerances import check

Call = Callable[[], Any]

# More than the last cache of the machines at hand. A layer's weights, keys or state are not in a cache when its turn
# comes in a model, so they are not here.
_EVICTION_BYTES = 128 << 20
_ROUNDS = 20
_SLOWEST_ROUNDS = 3


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _timed(call: Call) -> tuple[float, float]:
    """Wall time and process CPU time of one call, in microseconds."""
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    call()
    return (time.perf_counter_ns() - wall) / 1e3, (time.process_time_ns() - cpu) / 1e3


def _summary(samples: Sequence[float]) -> dict[str, float]:
    q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}


def _summarised(samples: list[tuple[float, float]]) -> dict[str, Any]:
    wall, cpu = zip(*samples, strict=True)
    return {"wall_us": _summary(wall), "cpu_us": _summary(cpu), "samples": len(samples)}


def alternately(calls: dict[str, Call], seconds: float) -> dict[str, dict[str, Any]]:
    """Run the calls in turn, each from cold caches; one that has had its ``seconds`` drops out after a few rounds."""
    eviction = torch.ones(_EVICTION_BYTES // 4)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    spent = dict.fromkeys(calls, 0.0)
    for i in range(_ROUNDS):
        for name, call in calls.items():
            if i >= _SLOWEST_ROUNDS and spent[name] > seconds:
                continue
            eviction.sum()
            samples[name].append(_timed(call))
            spent[name] += samples[name][-1][0] / 1e6
    return {name: _summarised(taken) for name, taken in samples.items()}


def _is_right(case: Case, results: Results, truth: Results, eager: Results) -> bool:
    try:
        for actual, expected, plain in zip(case.sample(results), truth, eager, strict=True):
            check(actual, expected, plain.to(actual.dtype))
    except AssertionError:
        return False
    return True


def _does_the_same_work(case: Case, results: tuple[Any, ...], truth: Results) -> bool:
    """Whether a peer computes the same thing, however it rounds.

    Another convention for scale, decay or packing is off by about the whole norm; MLX on a CPU, which sums in bfloat16,
    by 5 % of it at K = 2048.
    """
    return all(
        actual.shape == expected.shape and (actual.double() - expected).norm() <= 0.2 * expected.norm()
        for actual, expected in zip(case.sample(tuple(map(to_torch, results))), truth, strict=True)
    )


def _peer_call(case: Case, name: str, inputs: Inputs, truth: Results) -> Call | str | None:
    call = case.peers[name](case, inputs)
    return call if call is None or _does_the_same_work(case, call(), truth) else "wrong"


def measure(case: Case, roofs: dict[int, Roof], wanted_peers: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """The case's rows of the report, one for each number of threads.

    ``ours`` is None where the result is wrong; a peer is its times, "wrong", or None where it is not to be had.
    """
    inputs = case.inputs()
    truth, eager = case.reference(inputs, torch.float64), case.reference(inputs, case.eager_dtype)
    for threads, roof in roofs.items():
        row: dict[str, Any] = {
            "op": case.op,
            "case": str(case),
            "dtype": str(case.dtype).removeprefix("torch."),
            "threads": threads,
            "bytes": case.bytes(),
            "flops": case.flops(),
            "roof_us": roof.seconds(case.bytes(), case.flops()) * 1e6,
            "ours": None,
            "peers": dict.fromkeys(case.peers if wanted_peers else ()),
        }
        with thread_count(threads), torch.no_grad():
            ours = case.ours(inputs)
            row["ok"] = _is_right(case, ours(), truth, eager)
            if row["ok"]:
                row["peers"] = {name: _peer_call(case, name, inputs, truth) for name in row["peers"]}
                calls = {name: call for name, call in row["peers"].items() if callable(call)}
                row["peers"] |= alternately({"ours": ours} | calls, seconds)
                row["ours"] = row["peers"].pop("ours")
        yield row
