"""One block of a hybrid mixture-of-experts decoder in the manner of Qwen3.5-MoE, which uses all three ops.

A gated delta layer, grouped-query attention and int4 experts, each after a norm and around a residual. The recurrent
state, the key-value cache and the position are buffers that a call updates in place, so that a call takes the next
tokens only: a prompt of any length, then one token at a time.
"""

from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torch_metal_ops
from torch_metal_ops import quantize_affine, reference


@dataclass(frozen=True)
class Config:
    """Sizes; the defaults are Qwen3.5-MoE's, with fewer experts (it has 256) and a short cache."""

    batch: int = 1
    hidden: int = 2048
    attention_heads: int = 16
    kv_heads: int = 2
    head_dim: int = 256
    delta_key_heads: int = 16
    delta_value_heads: int = 32
    delta_head_dim: int = 128
    conv_width: int = 4
    experts: int = 16
    top_k: int = 8
    expert_hidden: int = 512
    group_size: int = 32
    max_length: int = 1024


TINY = Config(
    batch=2, hidden=64, attention_heads=4, kv_heads=2, head_dim=24, delta_key_heads=2, delta_value_heads=4,
    delta_head_dim=16, experts=6, top_k=2, expert_hidden=32, group_size=16, max_length=32,
)  # fmt: skip


def _reference_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    y, new_state = reference.gated_delta_rule(q, k, v, g, beta, state)
    state.copy_(new_state)
    return y


OPS = SimpleNamespace(
    sdpa=torch_metal_ops.sdpa, gather_qmv=torch_metal_ops.gather_qmv, gated_delta_rule=torch_metal_ops.gated_delta_rule
)
_REFERENCE_OPS = SimpleNamespace(
    sdpa=reference.sdpa, gather_qmv=reference.gather_qmv, gated_delta_rule=_reference_gated_delta_rule
)


class GatedDeltaLayer(nn.Module):
    """Gated DeltaNet: a short causal convolution, the recurrence, a gated norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ops = OPS
        self.Hk, self.Hv, self.D = config.delta_key_heads, config.delta_value_heads, config.delta_head_dim
        self.sizes = [self.Hk * self.D, self.Hk * self.D, self.Hv * self.D]
        channels = sum(self.sizes)
        self.qkv = nn.Linear(config.hidden, channels, bias=False)
        self.conv = nn.Conv1d(channels, channels, config.conv_width, groups=channels, bias=False)
        self.decay_and_beta = nn.Linear(config.hidden, 2 * self.Hv, bias=False)
        self.gate = nn.Linear(config.hidden, self.Hv * self.D, bias=False)
        self.log_rate = nn.Parameter(torch.linspace(-3, 2, self.Hv))
        self.rate_bias = nn.Parameter(torch.zeros(self.Hv))
        self.norm = nn.RMSNorm(self.D, eps=1e-6)
        self.out = nn.Linear(self.Hv * self.D, config.hidden, bias=False)
        self.register_buffer("state", torch.zeros(config.batch, self.Hv, self.D, self.D))
        self.register_buffer("recent", torch.zeros(config.batch, channels, config.conv_width - 1))

    def forward(self, x: Tensor) -> Tensor:
        channels = torch.cat([self.recent, self.qkv(x).transpose(1, 2)], dim=-1)
        self.recent.copy_(channels[..., -self.recent.shape[-1] :])
        q, k, v = F.silu(self.conv(channels)).transpose(1, 2).split(self.sizes, dim=-1)
        q, k, v = q.unflatten(-1, (self.Hk, -1)), k.unflatten(-1, (self.Hk, -1)), v.unflatten(-1, (self.Hv, -1))
        q, k = F.normalize(q, dim=-1) * self.D**-0.5, F.normalize(k, dim=-1)
        decay, beta = self.decay_and_beta(x).chunk(2, dim=-1)
        g = torch.exp(-torch.exp(self.log_rate) * F.softplus(decay + self.rate_bias))
        y = self.ops.gated_delta_rule(q, k, v, g, beta.sigmoid(), self.state)
        return self.out(self.norm(y).flatten(-2) * F.silu(self.gate(x)))


class Attention(nn.Module):
    """Grouped-query attention over a cache of fixed size, of which seqused_k says how much is filled."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ops = OPS
        self.Hq, self.Hkv, self.D = config.attention_heads, config.kv_heads, config.head_dim
        self.q = nn.Linear(config.hidden, self.Hq * self.D, bias=False)
        self.kv = nn.Linear(config.hidden, 2 * self.Hkv * self.D, bias=False)
        self.gate = nn.Linear(config.hidden, self.Hq * self.D, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(self.D, eps=1e-6), nn.RMSNorm(self.D, eps=1e-6)
        self.out = nn.Linear(self.Hq * self.D, config.hidden, bias=False)
        rotated = self.D // 4 // 2 * 2  # Qwen3.5 turns a quarter of each head
        self.register_buffer("frequencies", 1e7 ** -(torch.arange(0, rotated, 2) / max(rotated, 1)))
        cache = torch.zeros(config.batch, self.Hkv, config.max_length, self.D)
        self.register_buffer("keys", cache)
        self.register_buffer("values", cache.clone())
        self.register_buffer("filled", torch.zeros(config.batch, dtype=torch.int32))

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        angle = positions.unsqueeze(-1) * self.frequencies
        first, second, rest = x.split([len(self.frequencies)] * 2 + [self.D - 2 * len(self.frequencies)], dim=-1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        positions = self.filled[0] + torch.arange(x.shape[1], device=x.device)
        q = self.q(x).unflatten(-1, (self.Hq, -1)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2 * self.Hkv, -1)).transpose(1, 2).chunk(2, dim=1)
        q, k = self.rotate(self.q_norm(q), positions), self.rotate(self.k_norm(k), positions)
        self.keys.index_copy_(2, positions, k)
        self.values.index_copy_(2, positions, v)
        self.filled.add_(x.shape[1])
        y = self.ops.sdpa(q, self.keys, self.values, is_causal=True, enable_gqa=True, seqused_k=self.filled)
        return self.out(y.transpose(1, 2).flatten(-2) * self.gate(x).sigmoid())


class Experts(nn.Module):
    """A mixture of int4 SwiGLU experts. Nothing is sorted or repeated here: gather_qmv takes the top-k indices."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ops = OPS
        self.top_k, self.group_size = config.top_k, config.group_size
        self.router = nn.Linear(config.hidden, config.experts, bias=False)
        self._add_weights("gate_up", config.experts, 2 * config.expert_hidden, config.hidden)
        self._add_weights("down", config.experts, config.hidden, config.expert_hidden)

    def _add_weights(self, name: str, experts: int, N: int, K: int) -> None:
        # One expert at a time: quantising takes several times the memory of the weights.
        parts = [
            quantize_affine(torch.randn(N, K) * K**-0.5, bits=4, group_size=self.group_size) for _ in range(experts)
        ]
        for part, tensors in zip(("w", "scales", "biases"), zip(*parts, strict=True), strict=True):
            self.register_buffer(f"{name}_{part}", torch.stack(tensors))

    def forward(self, x: Tensor) -> Tensor:
        share, expert = self.router(x).softmax(-1).topk(self.top_k)
        share = share / share.sum(-1, keepdim=True)
        both = self.ops.gather_qmv(x, self.gate_up_w, self.gate_up_scales, self.gate_up_biases, expert, self.group_size)
        gate, up = both.chunk(2, dim=-1)
        y = self.ops.gather_qmv(
            F.silu(gate) * up, self.down_w, self.down_scales, self.down_biases, expert, self.group_size
        )
        return (y * share.unsqueeze(-1)).sum(-2)


class Decoder(nn.Module):
    """``[B, T, hidden]`` to the same; T is the number of new tokens and may differ from call to call."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        layers = [GatedDeltaLayer(config), Attention(config), Experts(config)]
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.RMSNorm(config.hidden, eps=1e-6) for _ in layers)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return x


def float64_twin(model: Decoder) -> Decoder:
    """The same weights, state and cache in float64 on the reference ops: what the model should compute."""
    twin = deepcopy(model).double()
    for layer in twin.layers:
        layer.ops = _REFERENCE_OPS
    return twin
