"""metal::gated_delta_rule beside transformers' functions for Qwen3-Next, ExecuTorch's reference and mlx-lm."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

import torch_metal_ops
from benchmarks.ops import Case, Inputs, Peer, Results, normal, optional, to_mlx


@dataclass(frozen=True, kw_only=True)
class GatedDeltaRule(Case):
    B: int = 1
    T: int
    Hk: int = 16
    Hv: int = 32
    Dk: int = 128
    Dv: int = 128

    op: ClassVar[str] = "gated_delta_rule"

    def __str__(self) -> str:
        return f"B{self.B} T{self.T} H{self.Hk}/{self.Hv} Dk{self.Dk} Dv{self.Dv}"

    @property
    def eager_dtype(self) -> torch.dtype:
        return torch.float32  # the op computes in float32 whatever the dtype of its inputs

    def inputs(self) -> Inputs:
        generator = torch.Generator().manual_seed(1)
        B, T, Hk, Hv = self.B, self.T, self.Hk, self.Hv
        q, k = (F.normalize(normal(generator, B, T, Hk, self.Dk), dim=-1).to(self.dtype) for _ in range(2))
        return {
            "q": q,
            "k": k,
            "v": normal(generator, B, T, Hv, self.Dv, dtype=self.dtype),
            "g": torch.exp(-torch.rand(B, T, Hv, generator=generator)),
            "beta": torch.rand(B, T, Hv, generator=generator),
            "state": normal(generator, B, Hv, self.Dv, self.Dk),
        }

    def bytes(self) -> int:
        activations = 2 * self.B * self.T * (self.Hk * self.Dk + self.Hv * self.Dv) * self.dtype.itemsize
        gates = 2 * self.B * self.T * self.Hv * 4
        state = 2 * self.B * self.Hv * self.Dv * self.Dk * 4  # read and written
        return activations + gates + state

    def flops(self) -> int:
        """The three products with the state: S k, d k^T, S q."""
        return 6 * self.B * self.T * self.Hv * self.Dk * self.Dv

    def ours(self, inputs: Inputs) -> Callable[[], Results]:
        own = inputs | {"state": inputs["state"].clone()}
        return lambda: (torch_metal_ops.gated_delta_rule(**own), own["state"])

    def sample(self, results: Results) -> Results:
        """Every 7th row of the state, as rows do not depend on each other, and what comes out of it."""
        y, state = results
        return y[..., ::7], state[..., ::7, :]

    def reference(self, inputs: Inputs, dtype: torch.dtype) -> Results:
        part = {"v": inputs["v"][..., ::7], "state": inputs["state"][..., ::7, :]}
        return torch_metal_ops.reference.gated_delta_rule(**inputs | part, dtype=dtype)


def _transformers(function: str, case: GatedDeltaRule, inputs: Inputs) -> Callable[[], Results] | None:
    module: Any = optional("transformers.models.qwen3_next.modeling_qwen3_next")
    if module is None:
        return None
    # Its convention: log g, q scaled by 1/sqrt(Dk) inside, state [B, Hv, Dk, Dv].
    q, g = inputs["q"] * case.Dk**0.5, inputs["g"].log()
    state = inputs["state"].mT.contiguous()

    def call() -> Results:
        nonlocal state
        y, state = getattr(module, function)(
            q, inputs["k"], inputs["v"], g, inputs["beta"], initial_state=state, output_final_state=True
        )
        return y, state.mT

    return call


def _transformers_recurrent(case: GatedDeltaRule, inputs: Inputs) -> Callable[[], Results] | None:
    return _transformers("torch_recurrent_gated_delta_rule", case, inputs)


def _transformers_chunk(case: GatedDeltaRule, inputs: Inputs) -> Callable[[], Results] | None:
    return _transformers("torch_chunk_gated_delta_rule", case, inputs) if case.T > 1 else None


def _executorch(case: GatedDeltaRule, inputs: Inputs) -> Callable[[], Results] | None:
    module: Any = optional("executorch.backends.apple.metal.ops.gated_delta_rule")
    if module is None:
        return None
    own = inputs | {"state": inputs["state"].clone()}
    return lambda: (module.gated_delta_rule._init_fn(*own.values()), own["state"])


def _mlx_lm(case: GatedDeltaRule, inputs: Inputs) -> Callable[[], Results] | None:
    module: Any = optional("mlx_lm.models.gated_delta")
    if module is None:
        return None
    mx: Any = optional("mlx.core")
    q, k, v, g, beta, state = (to_mlx(tensor) for tensor in inputs.values())

    def call() -> Results:
        nonlocal state
        y, state = module.gated_delta_ops(q, k, v, g, beta, state)
        mx.eval(y, state)
        return y, state

    return call


PEERS: dict[str, Peer] = {
    "transformers recurrent": _transformers_recurrent,
    "transformers chunk": _transformers_chunk,
    "executorch": _executorch,
    "mlx-lm": _mlx_lm,
}
GatedDeltaRule.peers = PEERS

STEPS = [GatedDeltaRule(B=B, T=1, default=B in (1, 8)) for B in (1, 2, 8)]
LONG = [
    GatedDeltaRule(T=T, dtype=dtype, default=dtype == torch.float32 and T in (128, 1024))
    for T in (128, 512, 1024, 4096)
    for dtype in (torch.float32, torch.bfloat16)
]
CASES = [*STEPS, *LONG]
