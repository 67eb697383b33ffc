"""A case for every Metal kernel: is it right, and how near does it come to what the GPU can do?"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import torch_metal_ops
from torch_metal_ops import reference
from torch_metal_ops._accuracy import measure

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# Sizes grow with this factor: small for comparing with float64, large for measuring.
_CHECKED, _TIMED = 4, 64
_CALLS = 20


@dataclass(frozen=True)
class _Call:
    """One call: the op on the device, the reference, and what has to be moved or computed at least."""

    actual: Callable[[], tuple[Tensor, ...]]
    expected: Callable[[torch.dtype], tuple[Tensor, ...]]
    work: float
    unit: str


_Make = Callable[[int, torch.dtype, str], _Call]


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _bytes(*tensors: Tensor) -> float:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _sdpa(Dk: int, Dv: int, decode: bool) -> _Make:
    def make(size: int, dtype: torch.dtype, device: str) -> _Call:
        Lq, Lk = (1, 128 * size) if decode else (16 * size, 16 * size)
        query, key, value = (_random(1, *sizes).to(dtype) for sizes in ((4, Lq, Dk), (2, Lk, Dk), (2, Lk, Dv)))
        q, k, v = (tensor.to(device) for tensor in (query, key, value))

        def actual() -> tuple[Tensor, ...]:
            return (torch_metal_ops.sdpa(q, k, v, enable_gqa=True),)

        def expected(precision: torch.dtype) -> tuple[Tensor, ...]:
            return (reference.sdpa(query, key, value, enable_gqa=True, dtype=precision),)

        if decode:
            return _Call(actual, expected, _bytes(q, k, v), "GB/s")
        return _Call(actual, expected, 2 * 4 * Lq * Lk * (Dk + Dv), "GFLOP/s")

    return make


def _gather_qmv(bits: int, decode: bool) -> _Make:
    def make(size: int, dtype: torch.dtype, device: str) -> _Call:
        E, N, K, pairs = 4, 32 * size, 32 * size, 8 if decode else 16 * size
        generator = torch.Generator().manual_seed(0)
        w = torch.randint(256, (E, N, K * bits // 8), dtype=torch.uint8, generator=generator)
        scales = (_random(E, N, K // 32) / 2**bits).to(dtype)
        on_cpu = _random(pairs, K).to(dtype), w, scales, _random(E, N, K // 32).to(dtype), torch.arange(pairs) % E
        x, w, scales, biases, indices = (tensor.to(device) for tensor in on_cpu)

        def actual() -> tuple[Tensor, ...]:
            return (torch_metal_ops.gather_qmv(x, w, scales, biases, indices, 32),)

        def expected(precision: torch.dtype) -> tuple[Tensor, ...]:
            return (reference.gather_qmv(*on_cpu, 32, precision),)

        if decode:
            return _Call(actual, expected, _bytes(w, scales, biases), "GB/s")
        return _Call(actual, expected, 2 * pairs * N * K, "GFLOP/s")

    return make


def _gated_delta_rule(Dk: int, channels: bool, T: int) -> _Make:
    def make(size: int, dtype: torch.dtype, device: str) -> _Call:
        B, Hk, Hv, Dv, steps = 1, 2, 4, 128, T
        if T == 1:
            B = max(1, size // 4)
        else:
            steps = T * size // 4 if size > 4 else T
        decay = (_random(B, steps, Hv, Dk) if channels else _random(B, steps, Hv)).sigmoid()
        key = torch.nn.functional.normalize(_random(B, steps, Hk, Dk), dim=-1)
        activations = _random(B, steps, Hk, Dk), key, _random(B, steps, Hv, Dv), decay, _random(B, steps, Hv).sigmoid()
        first = _random(B, Hv, Dv, Dk)
        q0, k0, v0, g0, beta0 = (tensor.to(dtype) for tensor in activations)
        q, k, v, g, beta, state = (tensor.to(device) for tensor in (q0, k0, v0, g0, beta0, first))

        def actual() -> tuple[Tensor, ...]:
            new = state.clone()
            return torch_metal_ops.gated_delta_rule(q, k, v, g, beta, new), new

        def expected(precision: torch.dtype) -> tuple[Tensor, ...]:
            return reference.gated_delta_rule(q0, k0, v0, g0, beta0, first, precision)

        if T == 1:  # the state is read and written, twice: it is copied before
            return _Call(actual, expected, 4 * _bytes(state), "GB/s")
        return _Call(actual, expected, 7 * B * steps * Hv * Dv * Dk, "GFLOP/s")

    return make


_HEADS = ((64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128), (192, 192), (256, 256), (576, 512))

CASES: dict[tuple[str, str], _Make] = {
    **{("sdpa", f"decode Dk{k} Dv{v}"): _sdpa(k, v, True) for k, v in (*_HEADS, (72, 72), (320, 320))},
    **{("sdpa", f"prefill Dk{k} Dv{v}"): _sdpa(k, v, False) for k, v in _HEADS},
    **{("gather_qmv", f"decode {bits} bits"): _gather_qmv(bits, True) for bits in (2, 3, 4, 5, 6, 8)},
    **{("gather_qmv", f"grouped {bits} bits"): _gather_qmv(bits, False) for bits in (2, 3, 4, 5, 6, 8)},
    **{
        ("gated_delta_rule", f"{name} Dk{Dk}{' channels' if channels else ''}"): _gated_delta_rule(Dk, channels, T)
        for name, T, sizes in (("step", 1, (64, 128, 256, 48, 96, 200)), ("chunked", 32, (64, 128, 256)))
        for Dk in sizes
        for channels in (False, True)
    },
}


def _rate(call: _Call, calls: int) -> float:
    """Work a second in billions, of calls that wait for nothing but each other."""
    torch.mps.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call.actual()
    torch.mps.synchronize()
    return calls * call.work / (time.perf_counter() - start) / 1e9


def _row(op: str, case: str, dtype: torch.dtype, checked: int, timed: int, calls: int) -> dict[str, Any]:
    name = str(dtype).removeprefix("torch.")
    row: dict[str, Any] = {"op": op, "case": case, "dtype": name, "ok": False, "detail": "", "rate": None, "unit": ""}
    try:
        call = CASES[op, case](checked, dtype, "mps")
        results, truth, eager = call.actual(), call.expected(torch.float64), call.expected(dtype)
        found = [measure(*tensors) for tensors in zip(results, truth, eager, strict=True)]
        wrong = [f"error {accuracy.error:.2g} > {accuracy.limit:.2g}" for accuracy in found if not accuracy.good]
        row |= {"ok": not wrong, "detail": ", ".join(wrong)}
        if not wrong:
            large = CASES[op, case](timed, dtype, "mps")
            large.actual()
            row |= {"rate": _rate(large, calls), "unit": large.unit}
    except Exception as error:  # a kernel that does not compile must not hide the others
        row |= {"ok": False, "detail": (str(error).splitlines() or [type(error).__name__])[0]}
    return row


def rows(checked: int = _CHECKED, timed: int = _TIMED, calls: int = _CALLS) -> Iterator[dict[str, Any]]:
    """One row a case and dtype: right or not, and the rate, of a call with larger sizes."""
    for op, case in CASES:
        for dtype in _DTYPES:
            yield _row(op, case, dtype, checked, timed, calls)


def table(found: list[dict[str, Any]]) -> str:
    """The rows as Markdown: a line a case, a column a dtype; what went wrong stands below."""
    names = [str(dtype).removeprefix("torch.") for dtype in _DTYPES]
    lines = [f"| Metal kernels | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for op, case in dict.fromkeys((row["op"], row["case"]) for row in found):
        cells = {row["dtype"]: row for row in found if (row["op"], row["case"]) == (op, case)}
        shown = [
            f"ok {row['rate']:.0f} {row['unit']}" if row["ok"] else "WRONG" for row in map(cells.__getitem__, names)
        ]
        lines.append(f"| {op} {case} | {' | '.join(shown)} |")
    wrong = [f"- {row['op']} {row['case']} {row['dtype']}: {row['detail']}" for row in found if not row["ok"]]
    good = sum(row["ok"] for row in found)
    return "\n".join([*lines, "", f"{good} of {len(found)} right", *wrong])
