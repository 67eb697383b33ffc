"""Quantised matrix-vector products, one row at a time."""

import torch
from torch import Tensor


def _weights(w: Tensor, scales: Tensor, biases: Tensor, K: int, group_size: int, dtype: torch.dtype) -> Tensor:
    """``[N, K]`` from one expert's bit stream: weight k has bits [k*bits, (k+1)*bits) of its row."""
    bits = 8 * w.shape[-1] // K
    stream = torch.stack([(w >> i) & 1 for i in range(8)], dim=-1).flatten(-2).to(dtype)
    q = sum(stream[:, i::bits] * 2**i for i in range(bits))
    group = torch.arange(K) // group_size
    weights: Tensor = scales.to(dtype)[:, group] * q + biases.to(dtype)[:, group]
    return weights


def gather_qmv(
    x: Tensor,
    w: Tensor,
    scales: Tensor,
    biases: Tensor,
    expert_indices: Tensor,
    group_size: int,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """:func:`torch_metal_ops.gather_qmv` in float64, or in a lower precision to see what that costs.

    Example:
        >>> w = torch.tensor([[[0x21] * 8]], dtype=torch.uint8)  # the weights 1, 2, 1, 2, ...
        >>> one = torch.ones(1, 1, 1)
        >>> gather_qmv(torch.ones(1, 16), w, 10 * one, one, torch.tensor([0]), 16).item()  # 8 * 11 + 8 * 21
        256.0
    """
    K, N = x.shape[-1], w.shape[1]
    top_k = expert_indices.shape[-1] if expert_indices.dim() == x.dim() else 1
    rows = x.to(dtype).reshape(x.shape[:-1].numel(), K)
    indices = expert_indices.reshape(len(rows), top_k)
    y = torch.zeros(*indices.shape, N, dtype=dtype)
    for expert in indices.unique().tolist():
        if expert == -1 or K == 0:
            continue
        where = indices == expert
        if not 0 <= expert < w.shape[0]:
            y[where] = float("nan")
            continue
        weights = _weights(w[expert], scales[expert], biases[expert], K, group_size, dtype)
        product = rows @ weights.T
        y = torch.where(where.unsqueeze(-1), product.unsqueeze(1), y)
    return y.reshape(*expert_indices.shape, N)
