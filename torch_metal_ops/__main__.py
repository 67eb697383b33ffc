"""What this installation is, what it runs on, and whether its kernels are right: ``python -m torch_metal_ops``."""

import argparse
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import torch_metal_ops
from torch_metal_ops import _metal_check, reference
from torch_metal_ops._accuracy import measure
from torch_metal_ops._build import BUILT_WITH_TORCH

_KEYS = ("CPU", "MPS", "Meta", "Autograd")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_TIMED_CALLS = 3

# The results of an op by name, and the same of the reference in a given dtype.
_Check = tuple[Callable[[], dict[str, Tensor]], Callable[[torch.dtype], dict[str, Tensor]]]


def _sdpa(random: Callable[..., Tensor], device: str) -> _Check:
    """Grouped-query attention over the filled part of a static cache."""
    query, key, value = random(2, 4, 8, 64), random(2, 2, 128, 64), random(2, 2, 128, 64)
    seqused_k = torch.tensor([100, 64], device=device)

    def actual() -> dict[str, Tensor]:
        y = torch_metal_ops.sdpa(query, key, value, is_causal=True, enable_gqa=True, seqused_k=seqused_k)
        return {"sdpa": y}

    def expected(dtype: torch.dtype) -> dict[str, Tensor]:
        q, k, v, used = query.cpu(), key.cpu(), value.cpu(), seqused_k.cpu()
        return {"sdpa": reference.sdpa(q, k, v, is_causal=True, enable_gqa=True, seqused_k=used, dtype=dtype)}

    return actual, expected


def _gather_qmv(random: Callable[..., Tensor], device: str) -> _Check:
    """Eight tokens, each with two of four 4-bit experts."""
    x, indices = random(8, 256), torch.arange(16).reshape(8, 2).to(device) % 4
    w, scales, biases = (part.to(device) for part in torch_metal_ops.quantize_affine(random(4, 128, 256).cpu(), 4, 64))

    def actual() -> dict[str, Tensor]:
        return {"gather_qmv": torch_metal_ops.gather_qmv(x, w, scales, biases, indices, 64)}

    def expected(dtype: torch.dtype) -> dict[str, Tensor]:
        y = reference.gather_qmv(x.cpu(), w.cpu(), scales.cpu(), biases.cpu(), indices.cpu(), 64, dtype)
        return {"gather_qmv": y}

    return actual, expected


def _gated_delta_rule(random: Callable[..., Tensor], device: str) -> _Check:
    """96 steps from a state that is not zero."""
    q, k, v = random(1, 96, 1, 64), random(1, 96, 1, 64), random(1, 96, 2, 64)
    k = torch.nn.functional.normalize(k.float(), dim=-1).to(k.dtype)
    g, beta, state = random(1, 96, 2).sigmoid(), random(1, 96, 2).sigmoid(), random(1, 2, 64, 64)

    def actual() -> dict[str, Tensor]:
        new_state = state.clone()
        y = torch_metal_ops.gated_delta_rule(q, k, v, g, beta, new_state)
        return {"gated_delta_rule": y, "gated_delta_rule state": new_state}

    def expected(dtype: torch.dtype) -> dict[str, Tensor]:
        on_cpu = q.cpu(), k.cpu(), v.cpu(), g.cpu(), beta.cpu(), state.cpu()
        y, new_state = reference.gated_delta_rule(*on_cpu, dtype)
        return {"gated_delta_rule": y, "gated_delta_rule state": new_state}

    return actual, expected


_CHECKS = {"sdpa": _sdpa, "gather_qmv": _gather_qmv, "gated_delta_rule": _gated_delta_rule}


def _has_kernel(op: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"metal::{op}", key)


def _median_ms(function: Callable[[], object], device: str) -> float:
    times = []
    for _ in range(_TIMED_CALLS):
        start = time.perf_counter()
        function()
        if device == "mps":
            torch.mps.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def _check(check: Callable[..., _Check], device: str, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    actual, expected = check(lambda *shape: torch.randn(*shape, generator=generator).to(device, dtype), device)
    results, truth, eager = actual(), expected(torch.float64), expected(dtype)
    milliseconds = _median_ms(actual, device)
    for name, result in results.items():
        accuracy = measure(result, truth[name], eager[name])
        yield {
            "op": name,
            "device": device,
            "dtype": str(dtype).removeprefix("torch."),
            "error": accuracy.error if math.isfinite(accuracy.error) else None,  # JSON has no inf
            "limit": accuracy.limit,
            "ms": milliseconds,
            "ok": accuracy.good,
        }


def _self_check(devices: list[str]) -> Iterator[dict[str, Any]]:
    for op, check in _CHECKS.items():
        for device in devices:
            if _has_kernel(op, device.upper()):
                for dtype in _DTYPES:
                    yield from _check(check, device, dtype)


def report() -> dict[str, Any]:
    """Versions, devices, kernels and the self-check, as ``--json`` prints them."""
    devices = ["cpu", "mps"] if torch.backends.mps.is_available() else ["cpu"]
    return {
        "versions": {
            "torch_metal_ops": torch_metal_ops.__version__,
            "torch": torch.__version__,
            "built with torch": BUILT_WITH_TORCH,
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "devices": {
            "cpu": f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads",
            "mps": "available" if "mps" in devices else "not available",
        },
        "kernels": {op: [key for key in _KEYS if _has_kernel(op, key)] for op in _CHECKS},
        "checks": list(_self_check(devices)),
        "metal": list(_metal_check.rows()) if "mps" in devices and _has_kernel("sdpa", "MPS") else [],
    }


def _print_text(found: dict[str, Any]) -> None:
    for title in ("versions", "devices"):
        for name, value in found[title].items():
            print(f"{name:18}{value}")
    print("\nkernels")
    for op, keys in found["kernels"].items():
        print(f"  {op:24}{' '.join(keys)}")
    print(f"\n{'self-check':26}{'device':8}{'dtype':10}{'error':>10}{'limit':>10}{'ms':>10}")
    for row in found["checks"]:
        error = float("inf") if row["error"] is None else row["error"]
        numbers = f"{error:>10.2g}{row['limit']:>10.2g}{row['ms']:>10.3f}"
        print(f"  {row['op']:24}{row['device']:8}{row['dtype']:10}{numbers}  {'ok' if row['ok'] else 'WRONG'}")
    print("\nerror: the largest against float64; limit: twice plain torch's in that dtype, and rounding.")
    if found["metal"]:
        print(f"\n{_metal_check.table(found['metal'])}")


def main(argv: list[str] | None = None) -> int:
    """Print the report; 1 when a check fails."""
    parser = argparse.ArgumentParser(prog="python -m torch_metal_ops", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(argv)
    found = report()
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        _print_text(found)
    return 0 if all(row["ok"] for row in found["checks"] + found["metal"]) else 1


if __name__ == "__main__":
    sys.exit(main())
