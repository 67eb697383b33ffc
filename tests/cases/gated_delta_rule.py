"""Cases of metal::gated_delta_rule."""

from dataclasses import dataclass

import torch

import torch_metal_ops
from cases import Call


@dataclass(frozen=True)
class Case:
    B: int = 1
    T: int = 1
    Hk: int = 2
    Hv: int = 2
    Dk: int = 64
    Dv: int = 64
    dtype: torch.dtype = torch.float32
    why: str = ""

    def __str__(self) -> str:
        return f"B{self.B}-T{self.T}-Hk{self.Hk}-Hv{self.Hv}-Dk{self.Dk}-Dv{self.Dv}-{str(self.dtype)[6:]}"

    def call(self) -> Call:
        generator = torch.Generator().manual_seed(1)

        def normal(*sizes):
            return torch.randn(*sizes, generator=generator)

        B, T, Hk, Hv, Dk, Dv = self.B, self.T, self.Hk, self.Hv, self.Dk, self.Dv
        q, k = (torch.nn.functional.normalize(normal(B, T, Hk, Dk), dim=-1).to(self.dtype) for _ in range(2))
        v = normal(B, T, Hv, Dv).to(self.dtype)
        g, beta = normal(B, T, Hv).sigmoid(), normal(B, T, Hv).sigmoid()
        args = (q, k, v, g, beta, normal(B, Hv, Dv, Dk))
        before = tuple(arg.clone() for arg in args)
        return Call(
            torch.ops.metal.gated_delta_rule.default,
            args,
            reference=lambda dtype: torch_metal_ops.reference.gated_delta_rule(*before, dtype=dtype),
            eager_dtype=torch.float32,
        )


CASES = [
    Case(B=2, T=3, Hv=4, Dk=96, Dv=80, why="more value heads than key heads, sizes that are no power of two"),
]
