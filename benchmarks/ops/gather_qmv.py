"""metal::gather_qmv, 4 bits, beside torch's int4 matmul, dequantised weights, ExecuTorch's reference and MLX."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

import torch_metal_ops
from benchmarks.ops import Case, Inputs, Peer, Results, normal, optional, to_mlx

_DECODE_ROWS = 64  # up to here the peers that unpack a row's weights for each row


@dataclass(frozen=True, kw_only=True)
class GatherQmv(Case):
    P: int
    E: int
    K: int
    N: int
    G: int = 32
    dtype: torch.dtype = torch.bfloat16

    op: ClassVar[str] = "gather_qmv"

    def __str__(self) -> str:
        return f"P{self.P} E{self.E} K{self.K} N{self.N} G{self.G}"

    def inputs(self) -> Inputs:
        generator = torch.Generator().manual_seed(1)
        scales = (torch.rand(self.E, self.N, self.K // self.G, generator=generator) / self.K**0.5).to(self.dtype)
        # Rows spread evenly over the experts: as many experts as bytes() counts.
        experts = torch.arange(self.P) % self.E
        return {
            "x": normal(generator, self.P, self.K, dtype=self.dtype),
            "w": torch.randint(256, (self.E, self.N, self.K // 2), dtype=torch.uint8, generator=generator),
            "scales": scales,
            "biases": -8 * scales,  # what torch's format holds exactly, as 0
            "expert_indices": experts[torch.randperm(self.P, generator=generator)].to(torch.int32),
            "group_size": self.G,
        }

    def bytes(self) -> int:
        weights = self.N * (self.K // 2 + 2 * self.K // self.G * self.dtype.itemsize)
        activations = self.P * ((self.K + self.N) * self.dtype.itemsize + torch.int32.itemsize)
        return min(self.P, self.E) * weights + activations

    def flops(self) -> int:
        return 2 * self.P * self.N * self.K

    def ours(self, inputs: Inputs) -> Callable[[], Results]:
        return lambda: (torch_metal_ops.gather_qmv(**inputs),)

    def sample(self, results: Results) -> Results:
        """At most 64 rows and every 7th output, as nothing in a kernel comes in sevens."""
        return (results[0][:: -(-self.P // 64), ::7],)

    def reference(self, inputs: Inputs, dtype: torch.dtype) -> Results:
        rows = slice(None, None, -(-self.P // 64))
        part = {"x": inputs["x"][rows], "expert_indices": inputs["expert_indices"][rows]}
        part |= {name: inputs[name][:, ::7] for name in ("w", "scales", "biases")}
        return (torch_metal_ops.reference.gather_qmv(**inputs | part, dtype=dtype),)


def _dequantised(inputs: Inputs, expert: int | Tensor) -> Tensor:
    w, scales, biases = (inputs[name][expert] for name in ("w", "scales", "biases"))
    q = torch.stack((w & 15, w >> 4), -1).flatten(-2).unflatten(-1, (-1, inputs["group_size"])).to(scales.dtype)
    return torch.addcmul(biases.unsqueeze(-1), q, scales.unsqueeze(-1)).flatten(-2)


def _by_expert(indices: Tensor) -> list[tuple[int, Tensor]]:
    return [(expert, (indices == expert).nonzero().squeeze(1)) for expert in indices.unique().tolist()]


def _torch_int4(case: GatherQmv, inputs: Inputs) -> Callable[[], Results]:
    """A loop over the experts of torch's int4 matmul; the weights are brought into its layout beforehand."""
    packed, scales_and_zeros = {}, {}
    for expert in inputs["expert_indices"].unique().tolist():
        w, scales, biases = (inputs[name][expert] for name in ("w", "scales", "biases"))
        q = torch.stack((w & 15, w >> 4), -1).flatten(-2).to(torch.int32)
        packed[expert] = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1)
        scales_and_zeros[expert] = torch.stack((scales.T, (biases + 8 * scales).T), -1).contiguous()

    def call() -> Results:
        y = torch.empty(case.P, case.N, dtype=case.dtype)
        for expert, rows in _by_expert(inputs["expert_indices"]):
            y[rows] = torch.ops.aten._weight_int4pack_mm_for_cpu(
                inputs["x"][rows], packed[expert], case.G, scales_and_zeros[expert]
            )
        return (y,)

    return call


def _dequantise_bmm(case: GatherQmv, inputs: Inputs) -> Callable[[], Results] | None:
    if case.P > _DECODE_ROWS:
        return None

    def call() -> Results:
        weights = _dequantised(inputs, inputs["expert_indices"])
        return (torch.bmm(weights, inputs["x"].unsqueeze(-1)).squeeze(-1),)

    return call


def _dequantise_mm(case: GatherQmv, inputs: Inputs) -> Callable[[], Results]:
    """Each expert's weights dequantised once, for all of its rows."""

    def call() -> Results:
        y = torch.empty(case.P, case.N, dtype=case.dtype)
        for expert, rows in _by_expert(inputs["expert_indices"]):
            y[rows] = inputs["x"][rows] @ _dequantised(inputs, expert).T
        return (y,)

    return call


def _executorch(case: GatherQmv, inputs: Inputs) -> Callable[[], Results] | None:
    module: Any = optional("executorch.backends.apple.metal.ops.gather_qmv")
    if module is None or case.P > _DECODE_ROWS:
        return None
    return lambda: (module.gather_qmv._init_fn(*inputs.values()),)


def _mlx(case: GatherQmv, inputs: Inputs) -> Callable[[], Results] | None:
    mx: Any = optional("mlx.core")
    if mx is None:
        return None
    x = to_mlx(inputs["x"].unsqueeze(1))
    w = to_mlx(inputs["w"]).view(mx.uint32)
    scales, biases, experts = (to_mlx(inputs[name]) for name in ("scales", "biases", "expert_indices"))

    def call() -> Results:
        y = mx.gather_qmm(x, w, scales, biases, rhs_indices=experts, transpose=True, group_size=case.G, bits=4)
        y = y.squeeze(1)
        mx.eval(y)
        return (y,)

    return call


def _ours_by_row(case: GatherQmv, inputs: Inputs) -> Callable[[], Results] | None:
    """Many rows against the decode path, one row a call."""
    if case.P <= _DECODE_ROWS:
        return None
    x, experts = inputs["x"].split(1), inputs["expert_indices"].split(1)
    weights = {name: inputs[name] for name in ("w", "scales", "biases", "group_size")}

    def call() -> Results:
        rows = [
            torch_metal_ops.gather_qmv(x=row, expert_indices=expert, **weights)
            for row, expert in zip(x, experts, strict=True)
        ]
        return (torch.cat(rows),)

    return call


PEERS: dict[str, Peer] = {
    "torch int4": _torch_int4,
    "dequantise + bmm": _dequantise_bmm,
    "dequantise once + mm": _dequantise_mm,
    "executorch": _executorch,
    "mlx": _mlx,
    "ours, row by row": _ours_by_row,
}
GatherQmv.peers = PEERS

DECODE = [
    GatherQmv(P=8, E=64, K=2048, N=768, default=True),
    GatherQmv(P=8, E=64, K=2048, N=2048, G=64, default=True),
    GatherQmv(P=8, E=64, K=512, N=2048, default=True),
    GatherQmv(P=64, E=64, K=2048, N=768),
    GatherQmv(P=8, E=256, K=2048, N=768),
    GatherQmv(P=64, E=256, K=2048, N=768, default=True),
    GatherQmv(P=64, E=256, K=2048, N=2048),
    GatherQmv(P=64, E=256, K=512, N=2048),
]
PREFILL = [GatherQmv(P=P, E=64, K=2048, N=768, default=P == 512) for P in (512, 2048, 8192)]
CASES = DECODE + PREFILL
