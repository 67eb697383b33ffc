"""Cases of metal::gather_qmv."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import torch_metal_ops
from cases import Call


def sliced(tensor: Tensor) -> Tensor:
    """The same values in the first rows of a tensor with more of them, after something else, in longer rows."""
    sizes = [tensor.shape[0] + 1, *(2 * size for size in tensor.shape[1:-1]), tensor.shape[-1] + 3]
    view = torch.full(sizes, 77, dtype=tensor.dtype)[1:]
    for d in range(1, tensor.dim()):
        view = view.narrow(d, 0, tensor.shape[d])
    return view.copy_(tensor)


def last_dim_apart(tensor: Tensor) -> Tensor:
    """The same values with other values between them."""
    view = torch.full((*tensor.shape, 2), 77, dtype=tensor.dtype)[..., 0]
    return view.copy_(tensor)


def transposed(tensor: Tensor) -> Tensor:
    """The same values with the first two dimensions in the other order in memory, or the last one strided."""
    if tensor.dim() < 3:
        return tensor.t().contiguous().t()
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


def reversed_dims(tensor: Tensor) -> Tensor:
    """The same values with all dimensions but the last in the other order in memory."""
    order = [*reversed(range(tensor.dim() - 1)), tensor.dim() - 1]
    return tensor.permute(order).contiguous().permute(order)


def one_expert(tensor: Tensor) -> Tensor:
    """The first expert's values for all, stride 0."""
    return tensor[:1].expand_as(tensor)


def odd_singletons(tensor: Tensor) -> Tensor:
    """Strides that mean nothing for dimensions of size 1."""
    strides = [12345 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(tensor.shape, strides)


@dataclass(frozen=True)
class Case:
    E: int = 3
    N: int = 10
    K: int = 128
    bits: int = 4
    group: int = 32
    rows: tuple[int, ...] = (4,)
    top_k: int | None = None
    dtype: torch.dtype = torch.float32
    scales: torch.dtype | None = None  # x's where None
    biases: torch.dtype | None = None
    index: torch.dtype = torch.int64
    experts: str = "any"  # or "none" (all -1), "some" (a third -1), "one" (all the same)
    x_layout: Callable[[Tensor], Tensor] | None = None
    w_layout: Callable[[Tensor], Tensor] | None = None
    index_layout: Callable[[Tensor], Tensor] | None = None
    special: str = ""  # "x", "scales" or "biases": that tensor has an inf and a NaN
    why: str = ""

    def __str__(self) -> str:
        rows = "x".join(map(str, self.rows)) + (f"k{self.top_k}" if self.top_k is not None else "")
        words = [f"E{self.E}-N{self.N}-K{self.K}-b{self.bits}-g{self.group}-P{rows}", str(self.dtype)[6:]]
        words += [f"{name}_{str(dtype)[6:]}" for name in ("scales", "biases") if (dtype := getattr(self, name))]
        words += [f"{name}_{f.__name__}" for name in "xw" if (f := getattr(self, f"{name}_layout"))]
        words += ["index_" + self.index_layout.__name__] if self.index_layout else []
        words += [str(self.index)[6:]] if self.index != torch.int64 else []
        words += [self.experts] if self.experts != "any" else []
        words += ["special_" + self.special] if self.special else []
        return "-".join(words)

    def call(self) -> Call:
        generator = torch.Generator().manual_seed(1)
        groups = (self.E, self.N, self.K // self.group)
        x = torch.randn(*self.rows, self.K, generator=generator).to(self.dtype)
        w = torch.randint(0, 256, (self.E, self.N, self.K * self.bits // 8), generator=generator, dtype=torch.uint8)
        top = 2**self.bits - 1
        scales = ((torch.rand(groups, generator=generator) + 0.5) / top).to(self.scales or self.dtype)
        biases = (-0.5 * scales.float() * top * torch.rand(groups, generator=generator)).to(self.biases or self.dtype)
        indices = self._indices(generator)
        if self.special:
            tensor = {"x": x, "scales": scales, "biases": biases}[self.special]
            tensor.view(-1)[::7], tensor.view(-1)[-1] = float("inf"), float("nan")
        if self.x_layout:
            x = self.x_layout(x)
        if self.w_layout:
            w, scales, biases = self.w_layout(w), self.w_layout(scales), self.w_layout(biases)
        if self.index_layout:
            indices = self.index_layout(indices)
        args = (x, w, scales, biases, indices, self.group)
        return Call(
            torch.ops.metal.gather_qmv.default,
            args,
            reference=lambda dtype: (torch_metal_ops.reference.gather_qmv(*args, dtype=dtype),),
        )

    def _indices(self, generator: torch.Generator) -> Tensor:
        shape = self.rows if self.top_k is None else (*self.rows, self.top_k)
        indices = torch.randint(0, max(self.E, 1), shape, generator=generator)
        if self.experts == "none":
            indices.fill_(-1)
        elif self.experts == "some":
            indices.view(-1)[::3] = -1
        elif self.experts == "one":
            indices.fill_(self.E - 1)
        return indices.to(self.index)


f16, bf16 = torch.float16, torch.bfloat16

CASES = [
    Case(E=1, N=1, K=16, group=16, rows=(1,), why="the smallest; less than one vector of weights (MLX 3096)"),
    *(
        Case(E=2, N=7, K=256, bits=bits, group=group, rows=(5,), dtype=dtype, why="every number of bits and group size")
        for bits, dtype in zip((2, 3, 4, 5, 6, 8), (torch.float32, f16, bf16, torch.float32, f16, bf16), strict=True)
        for group in (16, 32, 64, 128, 256)
    ),
    *(
        Case(E=2, N=9, K=K, bits=bits, group=group, rows=(rows,), why="K that is no whole number of vectors (MLX 3887)")
        for rows in (3, 11)
        for bits, K, group in [
            (2, 272, 16),
            (3, 80, 16),
            (4, 160, 32),
            (4, 544, 32),
            (5, 48, 16),
            (6, 96, 32),
            (8, 304, 16),
        ]
    ),
    *(
        Case(
            E=1,
            N=N,
            K=64,
            rows=(2,),
            dtype=f16,
            experts="one",
            why="few and odd numbers of outputs (MLX 665, 3096, 4250)",
        )
        for N in (2, 3, 4, 5, 6, 8, 33, 63, 65)
    ),
    Case(E=1, N=4, K=4096, group=64, rows=(1,), dtype=f16, why="NaN in MLX 665"),
    Case(E=2, N=50, K=320, group=64, rows=(40,), dtype=bf16, why="many rows an expert, two tiles of weights"),
    Case(E=1, N=5, K=64, bits=8, rows=(230,), experts="one", why="more rows than a tile holds, and a rest"),
    Case(E=2, N=3, K=32, bits=3, rows=(150,), experts="some", dtype=bf16, why="many rows, some without an expert"),
    Case(E=8, N=6, rows=(3, 5), top_k=2, index=torch.int32, dtype=bf16, why="top-k: each row meets two experts"),
    Case(E=3, N=6, rows=(2, 3, 2), top_k=3, experts="some", why="top-k with rows of three dimensions, and -1"),
    Case(E=3, N=6, rows=(2, 3), why="one expert a row, rows of two dimensions"),
    Case(E=300, N=1, K=16, group=16, rows=(1200,), why="more experts than a threadgroup has threads"),
    Case(rows=(), why="x is one vector, the index a scalar"),
    Case(rows=(), top_k=2, why="x is one vector with two experts"),
    Case(rows=(0,), why="no rows (MLX: an empty grid)"),
    Case(rows=(3,), top_k=0, why="no experts a row"),
    Case(N=0, why="no outputs"),
    Case(K=0, why="no inputs: a sum of nothing is zero"),
    Case(E=0, rows=(0,), why="no experts and no rows"),
    Case(E=0, experts="none", why="no experts, and no row wants one"),
    Case(experts="none", dtype=f16, why="no row has an expert"),
    Case(experts="some", why="-1 is a row of zeros"),
    Case(dtype=bf16, scales=torch.float32, biases=torch.float32, why="scales of another dtype than x"),
    Case(dtype=torch.float32, scales=bf16, biases=f16, rows=(20,), why="scales and biases of two dtypes"),
    Case(dtype=f16, scales=f16, biases=torch.float32, bits=3, why="scales and biases of two dtypes"),
    Case(x_layout=transposed, rows=(6,), dtype=bf16, why="x is a transpose: its last dimension is strided"),
    Case(x_layout=transposed, rows=(2, 3), top_k=2, why="x has its first dimensions swapped"),
    Case(x_layout=sliced, rows=(2, 3), dtype=f16, why="x in rows wider than used, behind an offset"),
    Case(E=1, N=2, K=16, group=16, rows=(2,) * 9, x_layout=reversed_dims, why="many dimensions that are not one"),
    Case(x_layout=one_expert, rows=(12,), why="x is one row for all, stride 0"),
    Case(x_layout=odd_singletons, rows=(1,), why="strides of dimensions of size 1 mean nothing"),
    Case(E=1, w_layout=odd_singletons, why="strides of dimensions of size 1 mean nothing"),
    *(
        Case(
            w_layout=layout,
            bits=bits,
            rows=(rows,),
            N=5,
            dtype=bf16,
            why="weights in any layout (MLX 4055), both paths",
        )
        for layout in (sliced, last_dim_apart, transposed, one_expert)
        for bits, rows in [(4, 3), (6, 24)]
    ),
    Case(index_layout=last_dim_apart, index=torch.int32, rows=(7,), why="indices as topk(...).indices[:, 0]"),
    Case(index_layout=transposed, rows=(3, 4), top_k=2, why="indices of a transposed router"),
    *(
        Case(
            special=special,
            rows=(rows,),
            bits=bits,
            E=2,
            N=4,
            why="inf and NaN are where the reference has them, both paths",
        )
        for special in ("x", "scales", "biases")
        for rows, bits in [(3, 4), (30, 5)]
    ),
]
