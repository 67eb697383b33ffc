"""The gated delta rule step by step."""

import torch
from torch import Tensor


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """y and the new state of :func:`torch_metal_ops.gated_delta_rule`, in float64 or another dtype.

    The arguments are left alone.

    Example:
        >>> one = torch.ones(1, 1, 1, 1)
        >>> y, state = gated_delta_rule(one, one, 3 * one, one[0] * 0.5, one[0], 2 * one)
        >>> y.item(), state.item()  # S = 0.5 * 2 = 1; d = 3 - 1 = 2; S = 1 + 2
        (3.0, 3.0)
    """
    q, k, v, g, beta, state = (tensor.to(dtype) for tensor in (q, k, v, g, beta, state))
    heads = v.shape[2] // max(q.shape[2], 1)
    q, k = q.repeat_interleave(heads, 2), k.repeat_interleave(heads, 2)
    if g.dim() == 3:
        g = g.unsqueeze(-1)
    y = torch.zeros_like(v)
    for t in range(q.shape[1]):
        state = state * g[:, t].unsqueeze(-2)
        d = beta[:, t].unsqueeze(-1) * (v[:, t] - (state @ k[:, t].unsqueeze(-1)).squeeze(-1))
        state = state + d.unsqueeze(-1) * k[:, t].unsqueeze(-2)
        y[:, t] = (state @ q[:, t].unsqueeze(-1)).squeeze(-1)
    return y, state
