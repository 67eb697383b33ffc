"""Scaled dot product attention with every score in memory."""

import torch
from torch import Tensor


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    sliding_window: int | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """:func:`torch_metal_ops.sdpa` in float64, or in a lower precision to see what that costs.

    Example:
        >>> q = torch.zeros(1, 1, 2, 1)  # every score is 0: the mean of the visible values
        >>> sdpa(q, q, torch.tensor([2.0, 4.0]).view(1, 1, 2, 1), is_causal=True).flatten().tolist()
        [2.0, 3.0]
    """
    if query.dim() == 3:
        return sdpa(
            query[None], key[None], value[None], attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa,
            seqused_k=seqused_k, sliding_window=sliding_window, softcap=softcap, sinks=sinks, dtype=dtype,
        )[0]  # fmt: skip
    B = torch.broadcast_shapes(query.shape[:1], key.shape[:1], value.shape[:1])[0]
    Hq, Lq, Dk = query.shape[1:]
    Hkv, Lk = key.shape[1:3]
    q, k, v = (tensor.to(dtype).expand(B, -1, -1, -1) for tensor in (query, key, value))
    if Hq != Hkv:
        k, v = k.repeat_interleave(Hq // Hkv, 1), v.repeat_interleave(Hq // Hkv, 1)

    scores = q @ k.transpose(-1, -2) * (Dk**-0.5 if scale is None else scale)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores = scores + attn_mask.to(dtype)

    used = torch.full((B,), Lk) if seqused_k is None else seqused_k.long().clamp(0, Lk)
    first = torch.zeros(B, dtype=torch.long) if seqused_k is None else used - Lq
    position = first.view(B, 1, 1, 1) + torch.arange(Lq).view(Lq, 1)
    j = torch.arange(Lk)
    visible = (j < used.view(B, 1, 1, 1)).expand(B, Hq, Lq, Lk)
    if is_causal:
        visible = visible & (j <= position)
    if sliding_window is not None:
        visible = visible & (j > position - sliding_window)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = visible & attn_mask
    # A float mask of -inf hides its key, NaN score included.
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        visible = visible & (attn_mask != float("-inf"))

    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(dtype).view(1, Hq, 1, 1).expand(B, Hq, Lq, 1)], -1)
    weights = torch.softmax(scores, -1)[..., :Lk].masked_fill(~visible, 0.0)
    # Hidden keys have no influence, whatever their values are: 0 * NaN is left out.
    seen = visible.any(2).unsqueeze(-1)
    return weights @ v.masked_fill(~seen, 0.0)
