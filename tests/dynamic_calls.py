"""Calls of the ops whose sizes vary, for torch.compile and torch.export: one graph must serve every size."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torch_metal_ops import gated_delta_rule, gather_qmv, quantize_affine, sdpa


@dataclass(frozen=True)
class DynamicCall:
    op: str
    why: str
    call: Callable[..., Tensor]
    make: Callable[..., tuple[Tensor, ...]]  # from the sizes to the arguments of call
    dims: tuple[dict[int, str], ...]  # for each argument, which dimension has which of the sizes
    out: tuple[str | int, ...]  # the output's shape
    sizes: list[dict[str, int]]  # traced with the first, run with all
    most: dict[str, int] = field(default_factory=dict)  # the sizes that the op itself bounds

    def __str__(self) -> str:
        return f"{self.op}: {self.why}"


def quantized_weights(E: int, N: int, K: int, group_size: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    return quantize_affine(torch.randn(E, N, K), bits=4, group_size=group_size)


def _delta_inputs(B: int, T: int, per_channel: bool = False) -> tuple[Tensor, ...]:
    Hk, Hv, Dk, Dv = 2, 4, 8, 6
    q, k, v = torch.randn(B, T, Hk, Dk), torch.randn(B, T, Hk, Dk) * Dk**-0.5, torch.randn(B, T, Hv, Dv)
    g = torch.rand(B, T, Hv, Dk) if per_channel else torch.rand(B, T, Hv)
    return q, k, v, g, torch.rand(B, T, Hv), torch.randn(B, Hv, Dv, Dk)


_ATTENTION_SIZES = [dict(B=2, Lq=3, Lk=7), dict(B=3, Lq=5, Lk=5), dict(B=5, Lq=2, Lk=64), dict(B=4, Lq=11, Lk=2)]
_PAIRS = [dict(T=3, k=2), dict(T=7, k=4), dict(T=2, k=3), dict(T=64, k=2)]
_STEPS = [dict(B=2, T=3), dict(B=3, T=7), dict(B=5, T=2), dict(B=2, T=70)]

CALLS = [
    DynamicCall(
        "sdpa",
        "grouped heads, causal, Dk != Dv",
        lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True),
        lambda B, Lq, Lk: (torch.randn(B, 4, Lq, 16), torch.randn(B, 2, Lk, 16), torch.randn(B, 2, Lk, 24)),
        ({0: "B", 2: "Lq"}, {0: "B", 2: "Lk"}, {0: "B", 2: "Lk"}),
        ("B", 4, "Lq", 24),
        _ATTENTION_SIZES,
    ),
    DynamicCall(
        "sdpa",
        "every option of decoding, query transposed",
        lambda q, k, v, used, sinks: sdpa(
            q.transpose(1, 2), k, v, is_causal=True, enable_gqa=True, seqused_k=used, sliding_window=5, softcap=20.0,
            sinks=sinks, scale=0.3,
        ),
        lambda B, Lq, Lk: (
            torch.randn(B, Lq, 4, 16), torch.randn(B, 2, Lk, 16), torch.randn(B, 2, Lk, 16),
            torch.randint(0, Lk + 1, (B,), dtype=torch.int32), torch.randn(4),
        ),
        ({0: "B", 1: "Lq"}, {0: "B", 2: "Lk"}, {0: "B", 2: "Lk"}, {0: "B"}, {}),
        ("B", 4, "Lq", 16),
        _ATTENTION_SIZES,
    ),
    DynamicCall(
        "sdpa",
        "float mask that broadcasts over heads",
        sdpa,
        lambda B, Lq, Lk: (*(torch.randn(B, 2, L, 8) for L in (Lq, Lk, Lk)), torch.randn(B, 1, Lq, Lk)),
        ({0: "B", 2: "Lq"}, {0: "B", 2: "Lk"}, {0: "B", 2: "Lk"}, {0: "B", 2: "Lq", 3: "Lk"}),
        ("B", 2, "Lq", 8),
        _ATTENTION_SIZES,
    ),
    DynamicCall(
        "sdpa",
        "bool mask of the lengths only, three dimensions",
        sdpa,
        lambda Lq, Lk: (*(torch.randn(2, L, 8) for L in (Lq, Lk, Lk)), torch.rand(Lq, Lk) < 0.5),
        ({1: "Lq"}, {1: "Lk"}, {1: "Lk"}, {0: "Lq", 1: "Lk"}),
        (2, "Lq", 8),
        [dict(Lq=3, Lk=7), dict(Lq=6, Lk=6), dict(Lq=2, Lk=40)],
    ),
    DynamicCall(
        "sdpa",
        "heads and head sizes vary too",
        lambda q, k, v: sdpa(q, k, v, is_causal=True),
        lambda H, Dk, Dv: (torch.randn(2, H, 3, Dk), torch.randn(2, H, 5, Dk), torch.randn(2, H, 5, Dv)),
        ({1: "H", 3: "Dk"}, {1: "H", 3: "Dk"}, {1: "H", 3: "Dv"}),
        (2, "H", 3, "Dv"),
        [dict(H=2, Dk=16, Dv=24), dict(H=3, Dk=80, Dv=80), dict(H=5, Dk=576, Dv=512)],
        {"Dk": 576, "Dv": 512},
    ),
    DynamicCall(
        "sdpa",
        "key and value of batch 1 broadcast",
        sdpa,
        lambda B, Lq, Lk: (torch.randn(B, 2, Lq, 8), torch.randn(1, 2, Lk, 8), torch.randn(1, 2, Lk, 8)),
        ({0: "B", 2: "Lq"}, {2: "Lk"}, {2: "Lk"}),
        ("B", 2, "Lq", 8),
        _ATTENTION_SIZES,
    ),
    DynamicCall(
        "gather_qmv",
        "one expert a row",
        lambda x, w, scales, biases, expert: gather_qmv(x, w, scales, biases, expert, 32),
        lambda P: (torch.randn(P, 64), *quantized_weights(3, 10, 64), torch.randint(-1, 3, (P,), dtype=torch.int32)),
        ({0: "P"}, {}, {}, {}, {0: "P"}),
        ("P", 10),
        [dict(P=3), dict(P=2), dict(P=65)],
    ),
    DynamicCall(
        "gather_qmv",
        "top-k experts of each token",
        lambda x, w, scales, biases, expert: gather_qmv(x, w, scales, biases, expert, 32),
        lambda T, k: (torch.randn(T, 64), *quantized_weights(5, 10, 64), torch.randint(0, 5, (T, k))),
        ({0: "T"}, {}, {}, {}, {0: "T", 1: "k"}),
        ("T", "k", 10),
        _PAIRS,
    ),
    DynamicCall(
        "gather_qmv",
        "batch, tokens, experts and outputs vary",
        lambda x, w, scales, biases, expert: gather_qmv(x, w, scales, biases, expert, 32),
        lambda B, T, E, N: (torch.randn(B, T, 64), *quantized_weights(E, N, 64), torch.randint(0, E, (B, T, 2))),
        ({0: "B", 1: "T"}, *3 * ({0: "E", 1: "N"},), {0: "B", 1: "T"}),
        ("B", "T", 2, "N"),
        [dict(B=2, T=3, E=4, N=5), dict(B=3, T=2, E=2, N=8), dict(B=4, T=9, E=7, N=3)],
    ),
    DynamicCall(
        "gated_delta_rule",
        "one decay a head",
        gated_delta_rule,
        _delta_inputs,
        (*5 * ({0: "B", 1: "T"},), {0: "B"}),
        ("B", "T", 4, 6),
        _STEPS,
    ),
    DynamicCall(
        "gated_delta_rule",
        "one decay a channel",
        gated_delta_rule,
        lambda B, T: _delta_inputs(B, T, per_channel=True),
        (*5 * ({0: "B", 1: "T"},), {0: "B"}),
        ("B", "T", 4, 6),
        _STEPS,
    ),
]  # fmt: skip


@dataclass(frozen=True)
class BadCall:
    """A call that the op refuses, and the sentence that every route to it must report."""

    call: Callable[..., Tensor]
    arguments: Callable[[], tuple[Tensor, ...]]
    sentence: str

    def __str__(self) -> str:
        return self.sentence.split(":")[0]


BAD_CALLS = [
    BadCall(
        sdpa,
        lambda: (torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 6, 8)),
        "sdpa: key and value must have the same length, got 5 and 6. Slice the longer one.",
    ),
    BadCall(
        lambda *arguments: gather_qmv(*arguments, 48),
        lambda: (torch.randn(4, 64), *quantized_weights(3, 10, 64), torch.zeros(4, dtype=torch.int32)),
        "gather_qmv: group_size must be one of 16, 32, 64, 128, 256, got 48. Requantise with "
        "torch_metal_ops.quantize_affine(weight, group_size=...).",
    ),
    BadCall(
        gated_delta_rule,
        lambda: (*_delta_inputs(2, 3)[:-1], torch.randn(2, 4, 8, 6)),
        "gated_delta_rule: state must be [B, Hv, Dv, Dk] = [2, 4, 6, 8], got shape [2, 4, 8, 6]. Reshape it, or check "
        "the sizes of q and v.",
    ),
]
