"""Cases of metal::sdpa."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import torch_metal_ops
from cases import Call

f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
inf, nan = float("inf"), float("nan")


def _memory(*order: int) -> Callable[[Tensor], Tensor]:
    """A copy whose dimensions lie in memory in this order, outermost first."""

    def copy(t: Tensor) -> Tensor:
        return t.permute(order).contiguous().permute([order.index(d) for d in range(t.dim())])

    return copy


def _heads_inside(t: Tensor) -> Tensor:
    """As a projection gives it: ``[B, L, H, D]`` in memory."""
    return t.transpose(-3, -2).contiguous().transpose(-3, -2)


def _slice_of_cache(t: Tensor) -> Tensor:
    """The first keys of a longer cache, whose rest is NaN."""
    cache = torch.full((*t.shape[:-2], t.shape[-2] + 5, t.shape[-1]), nan, dtype=t.dtype)
    cache[..., : t.shape[-2], :] = t
    return cache[..., : t.shape[-2], :]


def _wide_rows(t: Tensor) -> Tensor:
    """Rows wider than used, as slices of a fused projection; an offset of 3; what lies between is NaN."""
    wide = torch.full((*t.shape[:-1], t.shape[-1] + 7), nan, dtype=t.dtype)
    wide[..., 3:-4] = t
    return wide[..., 3:-4]


def _last_dim_strided(t: Tensor) -> Tensor:
    return t.transpose(-1, -2).contiguous().transpose(-1, -2)


def _every_second(t: Tensor) -> Tensor:
    """Elements two apart in the last dimension."""
    twice = torch.full((*t.shape[:-1], 2 * t.shape[-1]), nan, dtype=t.dtype)
    twice[..., ::2] = t
    return twice[..., ::2]


def _one_head_for_all(t: Tensor) -> Tensor:
    return t[..., :1, :, :].expand(t.shape)


def _one_row_for_all(t: Tensor) -> Tensor:
    return t[..., :1, :].expand(t.shape)


def _one_number(t: Tensor) -> Tensor:
    return t[..., :1].expand(t.shape)


def _odd_singletons(t: Tensor) -> Tensor:
    """Dimensions of size 1 have strides that no computation may use."""
    strides = [12345 if size == 1 else stride for size, stride in zip(t.shape, t.stride(), strict=True)]
    return t.as_strided(t.shape, strides)


def _bool(*sizes: int, keep: float = 0.6) -> Tensor:
    return torch.rand(sizes, generator=torch.Generator().manual_seed(7)) < keep


def _float(*sizes: int, dtype: torch.dtype = f32) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(7)).to(dtype)


def _hiding(mask: Tensor, *where: object, value: float = -inf) -> Tensor:
    mask = mask.clone()
    mask[where] = value
    return mask


@dataclass(frozen=True)
class Case:
    B: int | tuple[int, int, int] = 1  # one for query, key and value, or one each
    Hq: int = 2
    Hkv: int = 2
    Lq: int = 3
    Lk: int = 20
    Dk: int = 16
    Dv: int = 0  # 0: as Dk
    dtype: torch.dtype = f32
    batched: bool = True
    layout: Callable[[Tensor], Tensor] | None = None  # of query, key and value
    layouts: tuple[Callable[[Tensor], Tensor] | None, ...] = ()  # or one each
    mask: Callable[[], Tensor] | None = None
    seqused: tuple[int, ...] | None = None
    seqused_dtype: torch.dtype = torch.int32
    sinks: torch.dtype | None = None
    poison: Callable[[Tensor, Tensor, Tensor], None] | None = None  # changes query, key and value
    causal: bool = False
    scale: float | None = None
    window: int | None = None
    softcap: float = 0.0
    id: str = ""
    why: str = ""

    def __str__(self) -> str:
        return self.id or self.why.split(":")[0].split(",")[0].replace(" ", "-")

    def call(self) -> Call:
        generator = torch.Generator().manual_seed(1)
        batches = (self.B,) * 3 if isinstance(self.B, int) else self.B
        shapes = [
            (batches[0], self.Hq, self.Lq, self.Dk),
            (batches[1], self.Hkv, self.Lk, self.Dk),
            (batches[2], self.Hkv, self.Lk, self.Dv or self.Dk),
        ]
        qkv = [torch.randn(shape, generator=generator).to(self.dtype) for shape in shapes]
        if not self.batched:
            qkv = [t[0] for t in qkv]
        if self.poison is not None:
            self.poison(*qkv)
        layouts = self.layouts or (self.layout,) * 3
        qkv = [t if change is None else change(t) for t, change in zip(qkv, layouts, strict=True)]
        kwargs = {
            "attn_mask": None if self.mask is None else self.mask(),
            "is_causal": self.causal,
            "scale": self.scale,
            "enable_gqa": self.Hq != self.Hkv,
            "seqused_k": None if self.seqused is None else torch.tensor(self.seqused, dtype=self.seqused_dtype),
            "sliding_window": self.window,
            "softcap": self.softcap,
            "sinks": None if self.sinks is None else torch.randn(self.Hq, generator=generator).to(self.sinks),
        }
        return Call(
            torch.ops.metal.sdpa.default,
            tuple(qkv),
            kwargs,
            reference=lambda dtype: (torch_metal_ops.reference.sdpa(*qkv, **kwargs, dtype=dtype),),
        )


def _nan_beyond(k_from: int, *, front: int = 0) -> Callable[[Tensor, Tensor, Tensor], None]:
    """NaN and inf in every key that no row may see."""

    def poison(query: Tensor, key: Tensor, value: Tensor) -> None:
        key[..., k_from:, :], value[..., k_from:, :] = nan, inf
        key[..., :front, :], value[..., :front, :] = inf, nan

    return poison


def _query_nan(query: Tensor, key: Tensor, value: Tensor) -> None:
    query[..., 1, 0] = nan


def _key_inf(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Key 2 has a score of -inf."""
    query[:] = 1.0
    key[..., 2, 0] = -inf


def _all_scores_minus_inf(query: Tensor, key: Tensor, value: Tensor) -> None:
    query[:] = 1.0
    key[..., 0] = -inf


def _plus_inf(query: Tensor, key: Tensor, value: Tensor) -> None:
    query[:] = 1.0
    key[..., 3, 0] = inf


def _value_inf(query: Tensor, key: Tensor, value: Tensor) -> None:
    value[..., 1, 0], value[..., 2, 1], value[..., 2, 2] = inf, -inf, nan


def _large_scores(query: Tensor, key: Tensor, value: Tensor) -> None:
    query *= 7.0
    key *= 7.0


CASES = [
    # -- sizes and dtypes, both kernels: decode up to 8 rows a key head, tiles above
    Case(Lq=1, Lk=1, Dk=1, why="smallest"),
    Case(Lq=1, Lk=1, Dk=1, dtype=bf16, why="smallest bf16"),
    Case(Hq=8, Lq=1, Lk=77, Dk=64, why="decode f32, grouped"),
    Case(Hq=8, Lq=1, Lk=77, Dk=64, dtype=f16, why="decode f16, grouped"),
    Case(Hq=8, Lq=1, Lk=77, Dk=64, dtype=bf16, why="decode bf16, grouped"),
    Case(Hq=7, Hkv=1, Lq=1, Lk=130, Dk=80, why="decode 7 rows: four and three"),
    Case(Hq=6, Hkv=1, Lq=1, Lk=65, Dk=40, dtype=bf16, why="decode 6 rows: four and two"),
    Case(Hq=5, Hkv=1, Lq=1, Lk=64, Dk=36, why="decode 5 rows: four and one, partial vectors"),
    Case(Hq=3, Hkv=1, Lq=1, Lk=63, Dk=7, dtype=f16, why="decode head size 7"),
    Case(B=2, Hq=4, Lq=1, Lk=1100, Dk=32, why="decode in three chunks of keys"),
    Case(B=2, Hq=4, Lq=1, Lk=1537, Dk=24, dtype=bf16, why="decode in four chunks, bf16"),
    Case(Hq=9, Hkv=1, Lq=1, Lk=40, Dk=24, why="tile of 9 rows"),
    Case(Hq=32, Hkv=2, Lq=1, Lk=200, Dk=128, dtype=bf16, why="16 heads a group"),
    Case(Hq=4, Hkv=1, Lq=33, Lk=97, Dk=20, why="tiles of grouped heads, odd sizes"),
    Case(Lq=100, Lk=193, Dk=64, why="several tiles of rows and keys f32"),
    Case(Lq=100, Lk=193, Dk=64, dtype=f16, why="several tiles of rows and keys f16"),
    Case(Lq=100, Lk=193, Dk=64, dtype=bf16, why="several tiles of rows and keys bf16"),
    Case(Hq=1, Hkv=1, Lq=10, Lk=2100, Dk=8, why="few rows, keys in two chunks"),
    Case(Lq=17, Lk=31, Dk=5, Dv=3, why="head sizes 5 and 3"),
    Case(Lq=17, Lk=31, Dk=96, Dv=72, dtype=bf16, why="head sizes 96 and 72"),
    Case(Hq=4, Hkv=1, Lq=1, Lk=70, Dk=576, Dv=512, dtype=bf16, why="MLA decode: 576 and 512"),
    Case(Hq=2, Hkv=1, Lq=6, Lk=70, Dk=576, Dv=512, why="MLA tile: 576 and 512"),
    Case(Lq=9, Lk=33, Dk=192, Dv=128, why="MLA prefill: 192 and 128"),
    *[
        Case(
            B=2,
            Hq=4,
            Lq=Lq,
            Lk=41,
            Dk=Dk,
            Dv=Dv,
            dtype=dtype,
            causal=True,
            seqused=(41, 30),
            id=f"{Dk}-{Dv}-{Lq}-{str(dtype)[6:]}",
            why="a kernel of its own on mps",
        )
        for Lq in (1, 18)
        for Dk, Dv in (
            *((size, size) for size in (64, 80, 96, 112, 128, 192, 256)),
            (192, 128),
            (576, 512),
        )
        for dtype in (f32, f16, bf16)
    ],
    *[
        Case(
            Lq=1,
            Lk=200,
            Dk=320,
            Dv=260,
            dtype=dtype,
            id=f"320-260-{str(dtype)[6:]}",
            why="large head sizes of no model",
        )
        for dtype in (f32, f16, bf16)
    ],
    Case(Lq=9, Lk=3, Dk=16, why="more queries than keys"),
    Case(B=3, Lq=9, Lk=17, Dk=15, dtype=f16, why="three batches"),
    Case(batched=False, Lq=2, why="3-D"),
    Case(batched=False, Hq=4, Lq=5, Lk=9, mask=lambda: _bool(4, 5, 9), why="3-D with a mask a head"),
    Case(B=(2, 1, 1), Lq=2, why="batch of the query alone"),
    Case(B=(1, 2, 1), Lq=9, why="batch of the key alone"),
    Case(B=(1, 1, 2), Lq=2, why="batch of the value alone"),
    # -- empty
    Case(B=0, why="no batch"),
    Case(Lq=0, why="no query"),
    Case(Lk=0, why="no key: zeros"),
    Case(Lk=0, Lq=9, sinks=f32, why="no key, but a sink: zeros"),
    Case(Hq=0, Hkv=0, why="no head"),
    Case(Hq=0, Hkv=2, why="no query head"),
    # -- strides
    *[
        Case(
            Lq=Lq,
            B=2,
            Hq=4,
            Lk=70,
            dtype=dtype,
            layout=layout,
            id=f"{layout.__name__[1:]}-{Lq}-{str(dtype)[6:]}",
            why=why,
        )
        for Lq, dtype in ((2, bf16), (9, f32))
        for layout, why in (
            (_heads_inside, "[B, L, H, D] in memory: so is the output"),
            (_slice_of_cache, "keys of a longer cache"),
            (_wide_rows, "rows wider than used, an offset"),
            (_last_dim_strided, "last dimension not contiguous"),
            (_every_second, "last dimension with stride 2"),
            (_one_head_for_all, "heads with stride 0"),
            (_one_row_for_all, "length with stride 0"),
            (_one_number, "last dimension with stride 0"),
        )
    ],
    Case(B=2, Hq=4, Lq=9, layout=_memory(2, 1, 0, 3), id="length-outermost", why="[L, H, B, D] in memory"),
    Case(Hq=1, Hkv=1, Lq=1, layout=_odd_singletons, id="odd-singletons", why="strides of singletons mean nothing"),
    Case(Hq=1, Hkv=1, Lq=1, Lk=1, Dk=1, layout=_odd_singletons, id="odd-singletons-all", why="the last one's too"),
    *[
        Case(B=2, Hq=2, Lq=3, Lk=30, Dk=64, layouts=layouts, id=f"permuted-{i}", why="pytorch#181133: each combination")
        for i, layouts in enumerate(
            (q, k, v) for q in (None, _heads_inside) for k in (None, _heads_inside) for v in (None, _heads_inside)
        )
        if 0 < i < 7
    ],
    # -- masks
    *[
        Case(
            B=2,
            Hq=4,
            Lq=9,
            Lk=70,
            mask=lambda shape=shape: _bool(*shape),
            id=f"bool-{'x'.join(map(str, shape))}",
            why="pytorch#184180: each way to broadcast",
        )
        for shape in (
            (2, 4, 9, 70),
            (2, 1, 9, 70),
            (1, 4, 9, 70),
            (1, 1, 9, 70),
            (9, 70),
            (70,),
            (2, 1, 1, 70),
            (2, 4, 9, 1),
            (1, 4, 1, 1),
            (9, 1),
            (),
        )
    ],
    *[
        Case(
            B=2,
            Hq=4,
            Lq=1,
            Lk=70,
            dtype=bf16,
            mask=lambda shape=shape: _float(*shape),
            id=f"float-{'x'.join(map(str, shape))}",
            why="decode, pytorch#184180",
        )
        for shape in ((2, 4, 1, 70), (2, 1, 1, 70), (1, 4, 1, 70), (70,), (2, 1, 1, 1))
    ],
    *[
        Case(
            B=2,
            Hq=4,
            Lq=Lq,
            Lk=70,
            dtype=dtype,
            mask=lambda Lq=Lq, of=of: _hiding(_float(2, 1, Lq, 70, dtype=of), 0, 0, 0, slice(40)),
            id=f"{str(dtype)[6:]}-{Lq}-mask-{str(of)[6:]}",
            why="a mask of another dtype, some of it -inf",
        )
        for Lq, dtype, of in (
            (9, f32, f16),
            (9, bf16, f32),
            (9, f16, bf16),
            (1, f32, bf16),
            (1, f16, f32),
            (1, bf16, f16),
        )
    ],
    Case(
        B=2, Hq=4, Lq=9, Lk=70, mask=lambda: _bool(2, 1, 9, 1).expand(2, 4, 9, 70), why="bool mask expanded, stride 0"
    ),
    Case(B=2, Hq=4, Lq=1, Lk=70, mask=lambda: _float(1, 1, 1, 70).expand(2, 4, 1, 70), why="float mask expanded"),
    Case(Lq=9, Lk=70, mask=lambda: _bool(70, 9).t(), why="mask transposed"),
    Case(Lq=2, Lk=70, mask=lambda: _float(70, 2).t(), why="mask transposed, decode"),
    Case(Lq=9, Lk=70, mask=lambda: _float(9, 200)[:, 5:75], why="mask with rows wider than used, an offset"),
    Case(Lq=9, Lk=70, mask=lambda: _bool(9, 140)[:, ::2], why="mask with every second element"),
    Case(
        B=2,
        Lq=9,
        Lk=200,
        mask=lambda: _hiding(_bool(2, 1, 9, 200), 0, 0, slice(None), slice(96), value=0.0),
        why="a whole tile of keys is masked",
    ),
    Case(Lq=9, Lk=70, mask=lambda: _hiding(_bool(9, 70), slice(2, 4), value=0.0), why="whole rows masked: zeros"),
    Case(Lq=2, Lk=70, mask=lambda: _hiding(_bool(2, 70), 1, value=0.0), why="a row masked: zeros, decode"),
    Case(Lq=2, Lk=1100, Dk=8, mask=lambda: _hiding(_float(2, 1100), 1), why="a row of -inf: zeros, decode in chunks"),
    Case(Lq=9, Lk=70, dtype=bf16, mask=lambda: _hiding(_float(9, 70, dtype=bf16), 8), why="a row of -inf: zeros"),
    Case(Lq=2, mask=lambda: _bool(2, 20, keep=0.0), sinks=f32, why="all masked, but sinks: zeros"),
    *[
        Case(
            Hq=4,
            Hkv=1,
            Lq=Lq,
            Lk=40,
            mask=lambda Lq=Lq, of=of, value=value: _hiding(_float(Lq, 40, dtype=of), 0, value=value),
            id=f"row-of-{value:.2g}-{Lq}-{str(of)[6:]}",
            why="no hidden row: the mean of the values",
        )
        for Lq in (1, 9)
        for of, value in (
            (f32, torch.finfo(f32).min),
            (bf16, torch.finfo(bf16).min),
            (f16, torch.finfo(f16).min),
            (f32, -1.1e9),
        )
    ],
    *[
        Case(
            Hq=1,
            Hkv=1,
            Lq=1,
            Lk=Lk,
            Dk=8,
            mask=lambda Lk=Lk: torch.full((Lk,), torch.finfo(f32).min),
            id=f"all-finfo.min-{Lk}",
            why="torch's two-pass Metal kernel gives zeros here",
        )
        for Lk in (1023, 1024)
    ],
    Case(Lq=9, Lk=40, mask=lambda: torch.full((9, 40), -3e4), why="a constant mask changes nothing"),
    Case(Lq=9, Lk=40, mask=lambda: _hiding(_float(9, 40), 1, 2, value=nan), why="NaN in a mask: a row of NaN"),
    Case(Lq=2, Lk=40, mask=lambda: _hiding(_float(2, 40), 1, 2, value=inf), why="inf in a mask: a row of NaN"),
    Case(Lq=9, Lk=97, causal=True, mask=lambda: _bool(9, 97), why="mask and causal both apply"),
    Case(Lq=2, Lk=97, causal=True, mask=lambda: _float(2, 97), why="float mask and causal both apply"),
    *[
        Case(
            Hq=4,
            Lq=1,
            Lk=Lk,
            Dk=16,
            dtype=bf16,
            mask=lambda Lk=Lk: _bool(1, Lk),
            id=f"bool-decode-{Lk}",
            why="mlx-lm#58: Gemma 3",
        )
        for Lk in (1023, 1024, 1066, 1067)
    ],
    # -- causal, windows, keys in use
    Case(Lq=2, causal=True, why="causal decode, upper left"),
    Case(Lq=100, Lk=100, causal=True, why="causal"),
    Case(Hq=4, Hkv=1, Lq=70, Lk=70, dtype=bf16, causal=True, why="causal and grouped"),
    Case(Lq=40, Lk=100, causal=True, why="causal with more keys than queries, upper left"),
    Case(Lq=100, Lk=30, causal=True, why="causal with more queries than keys, upper left"),
    Case(Lq=100, Lk=100, causal=True, window=1, why="a window of one"),
    Case(Hq=4, Lq=200, Lk=200, Dk=8, causal=True, window=30, why="a window that leaves tiles out on both sides"),
    Case(Lq=9, Lk=9, causal=True, window=2**63 - 1, why="a window without bound"),
    Case(Lq=40, Lk=10, causal=True, window=3, why="a window past the keys: rows of zeros"),
    Case(B=3, Lq=2, seqused=(20, 7, 0), why="keys in use: all, some, none"),
    Case(B=3, Lq=9, seqused=(20, 7, 1), seqused_dtype=torch.int64, why="keys in use, int64"),
    Case(B=3, Lq=1, seqused=(25, -3, 2**31 - 1), why="keys in use are clamped"),
    Case(B=2, Hq=4, Lq=1, Lk=1500, Dk=8, seqused=(600, 1030), causal=True, why="keys in use in chunks"),
    Case(
        B=3, Lq=3, seqused=(20, 7, 2), causal=True, why="causal with keys in use, lower right; more queries than keys"
    ),
    Case(B=2, Lq=40, Lk=120, seqused=(110, 33), causal=True, why="causal tiles with keys in use, lower right"),
    Case(B=2, Lq=40, Lk=300, seqused=(290, 33), causal=True, window=20, why="window with keys in use, lower right"),
    Case(B=2, Lq=1, Lk=1300, Dk=8, seqused=(1290, 33), causal=True, window=600, why="window over a chunk boundary"),
    Case(
        B=(1, 2, 2), Lq=2, seqused=(20, 7), mask=lambda: _float(2, 20), why="keys in use, a mask, a batch of keys alone"
    ),
    # -- hidden keys may hold anything
    Case(B=2, Lq=1, seqused=(7, 7), poison=_nan_beyond(7), why="NaN beyond the keys in use, decode"),
    Case(B=2, Lq=20, seqused=(7, 7), dtype=bf16, poison=_nan_beyond(7), why="NaN beyond the keys in use"),
    Case(
        B=2,
        Lq=9,
        seqused=(7, 7),
        layout=_last_dim_strided,
        poison=_nan_beyond(7),
        why="NaN beyond, where keys are copied",
    ),
    Case(Lq=2, causal=True, poison=_nan_beyond(2), why="NaN that causal hides, decode"),
    Case(Lq=10, causal=True, poison=_nan_beyond(10), why="NaN that causal hides"),
    Case(
        Lq=1, seqused=(20,), causal=True, window=5, poison=_nan_beyond(20, front=15), why="NaN before a window, decode"
    ),
    Case(
        Lq=9,
        Lk=150,
        seqused=(150,),
        causal=True,
        window=5,
        poison=_nan_beyond(150, front=137),
        why="NaN before a window",
    ),
    Case(Lq=2, mask=lambda: torch.arange(20) < 9, poison=_nan_beyond(9), why="NaN that a mask hides, decode"),
    Case(
        Hq=4,
        Lq=20,
        Lk=150,
        mask=lambda: (torch.arange(150) > 3) & (torch.arange(150) < 99),
        poison=_nan_beyond(99, front=4),
        why="NaN that a mask hides",
    ),
    Case(
        Lq=9,
        Dv=5,
        mask=lambda: _hiding(_float(9, 20), slice(None), slice(4)),
        poison=_nan_beyond(20, front=4),
        why="NaN that a float mask hides, values copied",
    ),
    # -- NaN and inf in data that is used
    Case(Lq=2, poison=_query_nan, why="NaN in a query: its row, decode"),
    Case(Lq=9, poison=_query_nan, softcap=5.0, why="NaN in a query: its row"),
    Case(Lq=2, poison=_key_inf, why="a score of -inf, decode"),
    Case(Lq=9, poison=_key_inf, why="a score of -inf"),
    Case(Lq=2, poison=_all_scores_minus_inf, why="every score -inf: NaN, not zeros, decode"),
    Case(
        Lq=9,
        poison=_all_scores_minus_inf,
        dtype=bf16,
        mask=lambda: _hiding(_bool(9, 20), 3, value=0.0),
        why="every score -inf: NaN, but zeros where all is masked",
    ),
    Case(Lq=2, poison=_all_scores_minus_inf, sinks=f32, why="every score -inf, but sinks: zeros"),
    Case(Lq=2, poison=_plus_inf, why="a score of inf: NaN, decode"),
    Case(Lq=9, poison=_plus_inf, why="a score of inf: NaN"),
    Case(Lq=2, Lk=1100, poison=_plus_inf, why="a score of inf: NaN, decode in chunks"),
    Case(Lq=2, poison=_value_inf, why="inf in values, decode"),
    Case(Lq=9, poison=_value_inf, why="inf in values"),
    # -- scale, softcap, sinks
    Case(Lq=2, scale=0.0, why="scale 0: the mean"),
    Case(Lq=9, scale=-0.7, why="scale below 0"),
    Case(Lq=2, Dk=96, dtype=bf16, scale=0.0883883, poison=_large_scores, why="scores of 50 in bf16, decode"),
    Case(Lq=9, Dk=96, dtype=bf16, scale=0.0883883, poison=_large_scores, why="scores of 50 in bf16"),
    Case(Lq=2, poison=_large_scores, why="large scores, decode"),
    Case(Lq=9, poison=_large_scores, why="large scores"),
    Case(Lq=2, softcap=0.5, why="softcap, decode"),
    Case(Lq=9, softcap=50.0, why="softcap near the identity"),
    Case(Lq=9, dtype=bf16, softcap=20.0, causal=True, poison=_large_scores, why="softcap and causal with large scores"),
    Case(Hq=4, Lq=2, sinks=f32, why="sinks, decode"),
    Case(Hq=4, Lq=1, Lk=1100, Dk=8, sinks=bf16, why="sinks in bf16, decode in chunks"),
    Case(Hq=4, Lq=9, dtype=bf16, sinks=f16, causal=True, window=3, why="sinks in f16 with a window: gpt-oss"),
    Case(
        B=2,
        Hq=4,
        Lq=9,
        Lk=70,
        dtype=bf16,
        seqused=(70, 0),
        mask=lambda: _bool(2, 1, 1, 70),
        causal=True,
        window=40,
        softcap=3.0,
        sinks=bf16,
        layout=_heads_inside,
        why="everything at once",
    ),
    Case(
        B=2,
        Hq=4,
        Lq=1,
        Lk=600,
        Dk=12,
        seqused=(590, 300),
        mask=lambda: _float(4, 1, 600),
        causal=True,
        window=550,
        softcap=3.0,
        sinks=f32,
        layout=_heads_inside,
        why="everything at once, decode in chunks",
    ),
]
