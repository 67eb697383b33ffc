"""metal::sdpa beside F.scaled_dot_product_attention, three ways, and MLX."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_metal_ops
from benchmarks.ops import Case, Inputs, Peer, Results, normal, optional, to_mlx


@dataclass(frozen=True, kw_only=True)
class Sdpa(Case):
    B: int = 1
    Hq: int = 32
    Hkv: int = 8
    Lq: int = 1
    Lk: int
    D: int = 128
    used: int | None = None  # seqused_k
    mask: str = ""  # "causal", "bool", "float"

    op: ClassVar[str] = "sdpa"

    def __str__(self) -> str:
        used = "" if self.used is None else f" used{self.used}"
        return f"B{self.B} H{self.Hq}/{self.Hkv} Lq{self.Lq} Lk{self.Lk} D{self.D}{used} {self.mask}".rstrip()

    def inputs(self) -> Inputs:
        generator = torch.Generator().manual_seed(1)
        inputs: Inputs = {
            "query": normal(generator, self.B, self.Hq, self.Lq, self.D, dtype=self.dtype),
            "key": normal(generator, self.B, self.Hkv, self.Lk, self.D, dtype=self.dtype),
            "value": normal(generator, self.B, self.Hkv, self.Lk, self.D, dtype=self.dtype),
            "is_causal": self.mask == "causal",
        }
        if self.mask == "bool":  # one key in ten hidden here and there: no tile can be skipped
            inputs["attn_mask"] = torch.rand(self.Lq, self.Lk, generator=generator) < 0.9
        if self.mask == "float":
            inputs["attn_mask"] = normal(generator, self.Lq, self.Lk, dtype=self.dtype)
        if self.used is not None:
            inputs["seqused_k"] = torch.full((self.B,), self.used)
        return inputs

    def bytes(self) -> int:
        keys = self.Lk if self.used is None else self.used
        elements = 2 * self.B * self.D * (self.Hq * self.Lq + self.Hkv * keys)
        mask = {"bool": 1, "float": self.dtype.itemsize}.get(self.mask, 0) * self.Lq * self.Lk
        return elements * self.dtype.itemsize + mask

    def flops(self) -> int:
        keys = self.Lk if self.used is None else self.used
        pairs = sum(min(i + 1, keys) for i in range(self.Lq)) if self.mask == "causal" else self.Lq * keys
        return 4 * self.B * self.Hq * pairs * self.D

    def ours(self, inputs: Inputs) -> Callable[[], Results]:
        return lambda: (torch_metal_ops.sdpa(**inputs, enable_gqa=True),)

    def sample(self, results: Results) -> Results:
        """The query heads of the first and the last key head."""
        (out,) = results
        per_key_head = self.Hq // self.Hkv
        return out[:, :per_key_head], out[:, -per_key_head:]

    def reference(self, inputs: Inputs, dtype: torch.dtype) -> Results:
        key, value = inputs["key"], inputs["value"]
        return tuple(
            torch_metal_ops.reference.sdpa(
                **inputs | {"query": query, "key": key[:, head, None], "value": value[:, head, None]},
                enable_gqa=True,
                dtype=dtype,
            )
            for query, head in zip(self.sample((inputs["query"],)), (0, -1), strict=True)
        )


def _sliced(inputs: Inputs) -> Inputs:
    """The inputs for an op without seqused_k, which all batches here share: the keys in use as a view."""
    used = inputs.get("seqused_k")
    keys = inputs["key"].shape[2] if used is None else int(used[0])
    rest = {name: value for name, value in inputs.items() if name != "seqused_k"}
    return rest | {"key": inputs["key"][:, :, :keys], "value": inputs["value"][:, :, :keys]}


def _torch_gqa(case: Sdpa, inputs: Inputs) -> Callable[[], Results]:
    sliced = _sliced(inputs)
    return lambda: (F.scaled_dot_product_attention(**sliced, enable_gqa=True),)


def _torch_reshaped(case: Sdpa, inputs: Inputs) -> Callable[[], Results] | None:
    """One query: the heads that share keys become the queries of one head, and torch's flash kernel reads keys once."""
    if case.Lq != 1 or case.mask:
        return None
    sliced = _sliced(inputs)
    query = sliced.pop("query")
    grouped = (case.B, case.Hkv, case.Hq // case.Hkv, case.D)
    return lambda: (F.scaled_dot_product_attention(query.view(grouped), **sliced).view(query.shape),)


def _torch_repeated(case: Sdpa, inputs: Inputs) -> Callable[[], Results] | None:
    """Many queries: keys repeated for their query heads, which enable_gqa does not always beat."""
    if case.Lq == 1:
        return None
    sliced, heads = _sliced(inputs), case.Hq // case.Hkv
    key, value = sliced.pop("key"), sliced.pop("value")

    def call() -> Results:
        k, v = (tensor.repeat_interleave(heads, 1) for tensor in (key, value))
        return (F.scaled_dot_product_attention(key=k, value=v, **sliced),)

    return call


def _torch_math(case: Sdpa, inputs: Inputs) -> Callable[[], Results]:
    sliced = _sliced(inputs)

    def call() -> Results:
        with sdpa_kernel(SDPBackend.MATH):
            return (F.scaled_dot_product_attention(**sliced, enable_gqa=True),)

    return call


def _mlx(case: Sdpa, inputs: Inputs) -> Callable[[], Results] | None:
    mx: Any = optional("mlx.core")
    if mx is None:
        return None
    q, k, v = (to_mlx(_sliced(inputs)[name]) for name in ("query", "key", "value"))
    mask = "causal" if case.mask == "causal" else to_mlx(inputs["attn_mask"]) if case.mask else None
    scale = 1 / math.sqrt(case.D)

    def call() -> Results:
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)
        mx.eval(out)
        return (out,)

    return call


def _ours_short(case: Sdpa, inputs: Inputs) -> Callable[[], Results] | None:
    """seqused_k against a cache that is only that long."""
    if case.used is None:
        return None
    short = {
        name: value.contiguous() if isinstance(value, Tensor) else value for name, value in _sliced(inputs).items()
    }
    return case.ours(short)


PEERS: dict[str, Peer] = {
    "torch gqa": _torch_gqa,
    "torch reshaped": _torch_reshaped,
    "torch repeated": _torch_repeated,
    "torch math": _torch_math,
    "mlx": _mlx,
    "ours, short cache": _ours_short,
}
Sdpa.peers = PEERS

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DECODE = [Sdpa(Lk=Lk, dtype=dtype, default=Lk == 8192) for Lk in (1024, 8192, 65536) for dtype in (F32, BF16, F16)]
SEQUSED = [Sdpa(Lk=65536, used=8192, dtype=dtype, default=dtype == BF16) for dtype in (F32, BF16)]
LENGTHS = [
    Sdpa(Hq=16, Hkv=4, Lq=L, Lk=L, mask="causal", dtype=dtype, default=L == 1024)
    for L in (512, 1024, 2048, 4096)
    for dtype in (F32, BF16)
]
MASKS = [
    Sdpa(Hq=16, Hkv=4, Lq=1024, Lk=1024, mask=mask, dtype=dtype, default=dtype == F32)
    for mask in ("", "bool", "float")
    for dtype in (F32, BF16)
]
HEAD_SIZES = [
    Sdpa(Hq=16, Hkv=4, Lq=1024, Lk=1024, D=D, mask=mask) for D in (64, 80, 256) for mask in ("causal", "")
]  # fmt: skip
CASES = DECODE + SEQUSED + LENGTHS + MASKS + HEAD_SIZES
