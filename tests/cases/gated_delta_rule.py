"""Cases of metal::gated_delta_rule."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

import torch_metal_ops
from cases import Call

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


# Layouts: the same values in other memory.


def transposed(tensor: Tensor) -> Tensor:
    """Heads before steps: what a model has after .transpose(1, 2)."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def wide_rows(tensor: Tensor) -> Tensor:
    """A slice of a wider tensor, like q, k and v of one projection; the rest is NaN."""
    wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 5), float("nan"), dtype=tensor.dtype)
    wide[..., 3:-2] = tensor
    return wide[..., 3:-2]


def other_way_round(tensor: Tensor) -> Tensor:
    """The last dimension is not contiguous, the one before is."""
    return tensor.mT.contiguous().mT


def every_second(tensor: Tensor) -> Tensor:
    """Every second element of memory, starting at the second."""
    wide = torch.full((*tensor.shape, 2), float("nan"), dtype=tensor.dtype)
    wide[..., 1] = tensor
    return wide[..., 1]


def slice_of_cache(tensor: Tensor) -> Tensor:
    """One layer of a cache with the batch outside."""
    cache = torch.full((tensor.shape[0], 3, *tensor.shape[1:]), float("nan"), dtype=tensor.dtype)
    cache[:, 1] = tensor
    return cache[:, 1]


def expanded(tensor: Tensor) -> Tensor:
    """Every batch and step is the first, with stride 0."""
    return tensor[:1, :1].expand(tensor.shape)


def odd_singletons(tensor: Tensor) -> Tensor:
    """Dimensions of one element with a stride that means nothing."""
    strides = [12345 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(tensor.shape, strides)


# Decays, from values that are uniform from 0 to 1.


def usual(u: Tensor) -> Tensor:
    return torch.exp(-u * 2)


def near_one(u: Tensor) -> Tensor:
    return 1 - u * 1e-3


def one(u: Tensor) -> Tensor:
    return torch.ones_like(u)


def zero(u: Tensor) -> Tensor:
    return torch.zeros_like(u)


def some_zero(u: Tensor) -> Tensor:
    return torch.where(u < 0.2, 0.0, u)


def tiny(u: Tensor) -> Tensor:
    return torch.where(u < 0.5, torch.exp(torch.tensor(-90.0)), 1.0)


def full_range(u: Tensor) -> Tensor:
    return torch.exp(-100 * u**4)


@dataclass(frozen=True)
class Case:
    B: int = 1
    T: int = 1
    Hk: int = 1
    Hv: int = 2
    Dk: int = 8
    Dv: int = 8
    dtype: torch.dtype = F32
    gate_dtype: torch.dtype = F32
    state_dtype: torch.dtype = F32
    per_channel: bool = False
    decay: Callable[[Tensor], Tensor] = usual
    beta: float | None = None  # every step's, instead of 0 to 1
    key_norm: float = 1.0
    padding: tuple[int, ...] = ()  # steps with beta = 0 and g = 1
    layout: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    poison: tuple[str, tuple[int, ...], float] | None = None  # argument, where, value
    why: str = ""

    def __str__(self) -> str:
        parts = [f"B{self.B}-T{self.T}-Hk{self.Hk}-Hv{self.Hv}-Dk{self.Dk}-Dv{self.Dv}"]
        parts += [str(dtype)[6:] for dtype in (self.dtype, self.gate_dtype, self.state_dtype) if dtype != F32]
        parts += ["per_channel"] * self.per_channel + [self.decay.__name__] * (self.decay is not usual)
        parts += [f"beta{self.beta}"] * (self.beta is not None) + [f"norm{self.key_norm}"] * (self.key_norm != 1)
        parts += [f"padding{len(self.padding)}"] * bool(self.padding)
        parts += [f"{name}_{layout.__name__}" for name, layout in self.layout.items()]
        parts += [f"{self.poison[0]}_{self.poison[2]}"] if self.poison else []
        return "-".join(parts)

    def arguments(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1)

        def normal(*sizes: int) -> Tensor:
            return torch.randn(*sizes, generator=generator)

        def uniform(*sizes: int) -> Tensor:
            return torch.rand(*sizes, generator=generator)

        B, T, Hk, Hv, Dk, Dv = self.B, self.T, self.Hk, self.Hv, self.Dk, self.Dv
        q, k = (torch.nn.functional.normalize(normal(B, T, Hk, Dk), dim=-1) * self.key_norm for _ in range(2))
        g = self.decay(uniform(B, T, Hv, Dk) if self.per_channel else uniform(B, T, Hv))
        beta = uniform(B, T, Hv) if self.beta is None else torch.full((B, T, Hv), self.beta)
        g[:, list(self.padding)], beta[:, list(self.padding)] = 1, 0
        arguments = {
            "q": q.to(self.dtype),
            "k": k.to(self.dtype),
            "v": normal(B, T, Hv, Dv).to(self.dtype),
            "g": g.to(self.gate_dtype),
            "beta": beta.to(self.gate_dtype),
            "state": normal(B, Hv, Dv, Dk).to(self.state_dtype),
        }
        if self.poison:
            name, where, value = self.poison
            arguments[name][where] = value
        return {name: self.layout.get(name, lambda same: same)(tensor) for name, tensor in arguments.items()}

    def call(self) -> Call:
        args = tuple(self.arguments().values())
        before = tuple(arg.clone() for arg in args)
        return Call(
            torch.ops.metal.gated_delta_rule.default,
            args,
            reference=lambda dtype: torch_metal_ops.reference.gated_delta_rule(*before, dtype=dtype),
            eager_dtype=F32,  # the op promises float32 whatever its inputs are
        )


NAN, INF = float("nan"), float("inf")
QKV = ("q", "k", "v")

# T = 3 is computed step by step; T = 40 and more in chunks with a partial one at the end, where Dk is 32 or more.
CASES = [
    Case(B=2, T=3, Hv=4, Hk=2, Dk=96, Dv=80, why="more value heads than key heads, sizes that are no power of two"),
    Case(Dk=1, Dv=1, Hv=1, why="smallest"),
    Case(T=40, Dk=1, Dv=1, Hv=1, why="smallest, in chunks"),
    Case(T=2, Dk=33, Dv=5, why="tails of vectors, fewer rows than are done at once"),
    Case(T=65, Dk=33, Dv=19, why="tails of vectors and of panels; a last chunk of one step"),
    Case(T=11, Dk=16, Dv=6, why="most steps that are not done in chunks"),
    Case(T=12, Dk=16, Dv=6, why="fewest steps that are done in chunks"),
    Case(T=32, Dk=12, Dv=64, why="exactly one chunk"),
    Case(Hk=2, Hv=6, Dk=256, Dv=256, why="largest heads"),
    Case(T=33, Dk=256, Dv=256, Hv=1, why="largest heads, in chunks"),
    Case(Hk=2, Hv=4, Dk=128, Dv=128, why="Qwen3-Next's head size (D11)"),
    Case(T=64, Hk=2, Hv=4, Dk=128, Dv=128, why="Qwen3-Next's head size, prompt (D11)"),
    Case(B=3, T=5, Hk=3, Hv=3, Dk=32, Dv=40, why="one value head a key head"),
    Case(B=2, T=70, Hk=1, Hv=3, Dk=64, Dv=48, why="three value heads a key head, in chunks (D9)"),
    Case(T=15, Dk=32, Dv=9, why="most steps that Metal does not do in chunks"),
    Case(T=16, Dk=32, Dv=9, why="fewest steps that Metal does in chunks"),
    Case(T=5, Dk=64, Dv=33, per_channel=True, why="head size 64, a decay a channel; one row more than a threadgroup"),
    Case(T=5, Dk=128, Dv=7, per_channel=True, why="head size 128, a decay a channel"),
    Case(T=5, Dk=256, Dv=17, per_channel=True, why="head size 256, a decay a channel"),
    Case(T=2, Dk=100, Dv=12, per_channel=True, why="a decay a channel, a tail of vectors in larger heads"),
    Case(T=2, Dk=250, Dv=20, why="a tail of vectors in the largest heads"),
    Case(T=2, Dk=132, Dv=20, per_channel=True, why="a decay a channel, vectors that some lanes do not have"),
    Case(T=20, Dk=128, Dv=70, per_channel=True, why="head size 128, a decay a channel, in chunks"),
    Case(T=20, Dk=253, Dv=9, per_channel=True, why="larger heads, a decay a channel, in chunks with tails"),
    # dtypes
    Case(T=2, Dk=64, dtype=BF16, why="state and decay in float32 with bfloat16 activations (D1, D2)"),
    Case(T=3, Dk=64, dtype=BF16, gate_dtype=BF16, state_dtype=BF16, why="all bfloat16"),
    Case(T=40, Dk=64, dtype=F16, gate_dtype=F16, state_dtype=F16, why="all float16, in chunks"),
    Case(Dk=64, dtype=F16, gate_dtype=BF16, why="three dtypes"),
    Case(T=40, Dk=24, gate_dtype=F16, state_dtype=BF16, why="activations in float32, state in bfloat16"),
    Case(Dk=64, Dv=24, state_dtype=BF16, why="one step on a bfloat16 state in place"),
    Case(Dk=64, Dv=24, state_dtype=F16, why="one step on a float16 state in place"),
    Case(T=128, Dk=16, dtype=BF16, decay=near_one, why="a decay near 1, which bfloat16 would round to 1 (D2)"),
    # decays
    Case(T=3, Dk=24, Dv=20, per_channel=True, why="a decay a channel"),
    Case(B=2, T=70, Hk=2, Hv=4, Dk=40, Dv=20, per_channel=True, why="a decay a channel, in chunks"),
    Case(T=40, Dk=16, per_channel=True, gate_dtype=BF16, dtype=BF16, why="a decay a channel in bfloat16"),
    Case(T=100, Dk=16, decay=one, beta=1.0, why="no decay (D4)"),
    Case(T=100, Dk=16, decay=one, beta=2.0, why="no decay, reflections (D4)"),
    Case(T=40, Dk=16, decay=zero, why="decay 0: its logarithm is -inf (D4)"),
    Case(T=3, Dk=16, decay=zero, why="decay 0, step by step (D4)"),
    Case(T=100, Dk=16, decay=some_zero, why="some decays are 0 (D4)"),
    Case(T=100, Dk=16, decay=some_zero, per_channel=True, why="some decays are 0, a decay a channel (D4)"),
    Case(T=100, Dk=16, decay=tiny, why="logarithms of -90 and 0 in turn: a split exponential is inf * 0 (D5)"),
    Case(T=100, Dk=16, decay=tiny, per_channel=True, why="the same, a decay a channel (D5)"),
    Case(T=100, Dk=16, decay=full_range, why="decays from 1 to exp(-100) (D4)"),
    Case(T=100, Dk=16, decay=full_range, per_channel=True, why="the same, a decay a channel (D4)"),
    Case(T=40, Dk=32, decay=one, beta=2.0, why="no decay, reflections, in chunks (D4)"),
    Case(T=40, Dk=32, decay=zero, why="decay 0, in chunks (D4)"),
    Case(T=40, Dk=32, decay=some_zero, per_channel=True, why="some decays are 0, a decay a channel, in chunks (D4)"),
    Case(T=40, Dk=32, decay=tiny, why="logarithms of -90 and 0 in turn, in chunks (D5)"),
    Case(T=40, Dk=32, decay=tiny, per_channel=True, why="the same, a decay a channel (D5)"),
    Case(T=40, Dk=32, decay=full_range, why="decays from 1 to exp(-100), in chunks (D4)"),
    Case(T=40, Dk=32, decay=full_range, per_channel=True, why="the same, a decay a channel (D4)"),
    # keys
    Case(T=40, Dk=16, key_norm=3.0, beta=1.0, why="keys that are not normalised: the state grows 8-fold a step (D6)"),
    Case(T=40, Dk=32, key_norm=3.0, beta=1.0, why="the same, in chunks (D6)"),
    Case(T=40, Dk=16, key_norm=0.0, why="keys of zeros (D6)"),
    Case(T=3, Dk=16, beta=0.0, why="no update"),
    # padding
    Case(T=5, Dk=16, padding=(0, 1, 3), why="padding steps change nothing (D7)"),
    Case(T=70, Dk=16, padding=(*range(10), 20, *range(34, 70)), why="padding before, within and after, in chunks (D7)"),
    Case(T=40, Dk=32, padding=(*range(10), 20, *range(34, 40)), why="padding in chunks, whole chunks of it (D7)"),
    # layouts
    Case(B=2, T=3, Hk=2, Dk=16, layout=dict.fromkeys(QKV, transposed), why="heads before steps"),
    Case(B=2, T=40, Hk=2, Dk=16, layout=dict.fromkeys(QKV, transposed), why="heads before steps, in chunks"),
    Case(B=2, T=3, Dk=12, layout=dict.fromkeys((*QKV, "g", "beta"), wide_rows), why="slices, storage offsets"),
    Case(B=2, T=40, Dk=12, layout=dict.fromkeys((*QKV, "g", "beta"), wide_rows), why="slices, in chunks"),
    Case(B=2, T=3, Dk=16, layout=dict.fromkeys(QKV, other_way_round), why="last dimension not contiguous"),
    Case(B=2, T=40, Dk=16, layout=dict.fromkeys(QKV, every_second), why="last dimension not contiguous, in chunks"),
    Case(B=2, T=3, Hk=2, layout=dict.fromkeys((*QKV, "g", "beta"), expanded), why="stride 0"),
    Case(B=2, T=40, Hk=2, layout=dict.fromkeys((*QKV, "g", "beta"), expanded), why="stride 0, in chunks"),
    Case(
        B=2,
        T=40,
        Hk=2,
        Dk=36,
        dtype=F16,
        layout=dict.fromkeys((*QKV, "g", "beta", "state"), every_second),
        why="nothing contiguous, in matrices",
    ),
    Case(T=40, Dk=36, Dv=5, layout={"state": other_way_round}, why="a state [B, Hv, Dk, Dv], in matrices"),
    Case(T=40, Dk=40, per_channel=True, layout={"g": expanded, "k": expanded}, why="stride 0, in matrices"),
    Case(T=40, Hv=1, layout=dict.fromkeys((*QKV, "g", "beta", "state"), odd_singletons), why="odd strides of size 1"),
    Case(B=2, T=40, per_channel=True, layout={"g": every_second}, why="decay a channel, last dimension not contiguous"),
    Case(B=2, T=3, per_channel=True, layout={"g": transposed}, why="decay a channel, heads before steps"),
    Case(B=2, Dk=16, layout={"state": slice_of_cache}, why="the state is a layer of a cache (D15)"),
    Case(B=2, T=40, layout={"state": slice_of_cache}, why="the state is a layer of a cache, in chunks (D15)"),
    Case(B=2, Dk=16, layout={"state": other_way_round}, why="a state [B, Hv, Dk, Dv] seen as [B, Hv, Dv, Dk]"),
    Case(B=2, T=40, Dk=16, Dv=5, layout={"state": other_way_round}, why="the same, in chunks"),
    Case(B=2, T=2, layout={"state": every_second}, state_dtype=BF16, why="a state with gaps"),
    Case(B=2, Dk=16, layout={"state": wide_rows}, why="a state with rows that are wider than used"),
    Case(B=2, T=1, Hk=2, Dk=16, layout={"state": transposed}, why="a state with rows before heads"),
    # empty
    Case(B=0, T=3, why="no batch"),
    Case(T=0, why="no steps: the state stays"),
    Case(T=3, Hk=0, Hv=0, why="no heads"),
    Case(T=3, Hk=2, Hv=0, why="no value heads"),
]

# NaN and inf go where the recurrence takes them, and nowhere else. Apart, as opcheck takes no NaN for equal to another.
POISONED = [
    Case(B=2, T=40, Dk=12, Dv=20, poison=("v", (0, 20, 0, 3), NAN), why="one row of one head, from step 20 on"),
    Case(B=2, T=40, Dk=12, Dv=20, poison=("k", (1, 20, 0, 3), NAN), why="one batch, from step 20 on"),
    Case(B=2, T=40, Dk=12, Dv=20, poison=("q", (1, 20, 0, 3), NAN), why="one step of one batch; not the state"),
    Case(B=2, T=40, Dk=12, Dv=20, poison=("g", (1, 20, 1), NAN), why="one head, from step 20 on"),
    Case(B=2, T=40, Dk=12, Dv=20, poison=("beta", (1, 20, 1), NAN), why="one head, from step 20 on"),
    Case(B=2, T=40, Dk=12, Dv=20, poison=("state", (1, 1, 5, 2), NAN), why="one row of one head"),
    Case(B=2, T=40, Dk=12, Dv=20, poison=("state", (1, 1, 5, 2), INF), why="inf becomes NaN at the second step"),
    Case(B=2, T=40, Dk=12, Dv=20, poison=("v", (0, 20, 0, 3), INF), why="an inf that meets itself in a sum is NaN"),
    Case(B=2, T=40, Dk=12, Dv=20, poison=("k", (0, 39, 0, 3), -INF), why="inf in the last key"),
    Case(B=2, T=40, Dk=40, Dv=20, poison=("v", (0, 20, 0, 3), NAN), why="in chunks: one row of one head"),
    Case(B=2, T=40, Dk=40, Dv=20, poison=("k", (1, 20, 0, 3), NAN), why="in chunks: one batch, from step 20 on"),
    Case(B=2, T=40, Dk=40, Dv=20, poison=("q", (1, 20, 0, 39), INF), why="in chunks: one step, not the state"),
    Case(B=2, T=40, Dk=40, Dv=20, poison=("g", (1, 20, 1), NAN), why="in chunks: one head, from step 20 on"),
    Case(B=2, T=40, Dk=40, Dv=20, poison=("beta", (1, 39, 1), NAN), why="in chunks: one head, the last step"),
    Case(B=2, T=40, Dk=40, Dv=20, poison=("state", (1, 1, 5, 2), INF), why="in chunks: NaN at the second step"),
    Case(B=2, T=40, Dk=35, Dv=20, poison=("v", (0, 39, 0, 3), INF), why="in chunks: inf beside the pad of a matrix"),
    Case(T=40, Dk=35, per_channel=True, poison=("g", (0, 20, 1, 4), NAN), why="in chunks: one channel's decay"),
    Case(T=2, Dk=1, Dv=3, poison=("v", (0, 1, 0, 2), INF), why="inf beside the pad of a vector stays inf"),
    Case(B=2, T=3, Dk=12, poison=("v", (0, 1, 0, 3), NAN), why="step by step: one row of one head"),
    Case(T=40, Dk=12, per_channel=True, poison=("g", (0, 20, 1, 4), NAN), why="one channel's decay, from step 20 on"),
]
