"""metal::sdpa: scaled dot product attention with any head size, mask, stride and cache layout."""

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
) -> Tensor:
    r"""Attend from each query to the keys it may see.

    .. math:: o_i = \sum_j p_{ij} v_j, \qquad p_{i\cdot} = \operatorname{softmax}_j(\text{scale} \cdot q_i k_j + m_{ij})

    The first eight arguments are those of :func:`torch.nn.functional.scaled_dot_product_attention`, in its order and
    with its meaning.

    Dimensions: ``B`` batches, ``Hq`` query heads, ``Hkv`` key heads, ``Lq`` queries, ``Lk`` keys, ``Dk`` and ``Dv``
    the head sizes.

    Args:
        query: ``[B, Hq, Lq, Dk]`` or ``[Hq, Lq, Dk]``, float32, float16 or bfloat16, any strides; 1 <= Dk <= 576.
        key: ``[B, Hkv, Lk, Dk]``, dtype of query. B broadcasts: 1 against n, in any of the three.
        value: ``[B, Hkv, Lk, Dv]``, dtype of query; 1 <= Dv <= 512, and Dv may differ from Dk.
        attn_mask: broadcastable to ``[B, Hq, Lq, Lk]``. bool (True means attend), or a float of any dtype that is
            added to the scaled scores. Combines with is_causal: both apply.
        dropout_p: must be 0.0.
        is_causal: key j is visible to query i when j <= i (upper left, as in torch); with seqused_k, see there.
        scale: factor of the scores; None is 1/sqrt(Dk).
        enable_gqa: allows Hq to be a multiple of Hkv; query head h uses key head h // (Hq/Hkv).
        seqused_k: ``[B]``, int32 or int64: only the first seqused_k[b] keys of batch b are used and read, so a long
            static cache costs what is filled. The queries are then the last Lq of those keys: query i stands at
            position seqused_k[b] - Lq + i, for is_causal and sliding_window (lower right). Clamped to [0, Lk].
        sliding_window: w >= 1, with is_causal: the query at position p sees keys p-w < j <= p.
        softcap: c > 0 turns a score s into c * tanh(s / c) before masking; 0.0 is off.
        sinks: ``[Hq]``, any float dtype: one more logit a head, which takes part in the normalisation only.

    Returns:
        ``[B, Hq, Lq, Dv]``, dtype of query, with query's order of dimensions in memory. A query that sees no key
        gives zeros (with sinks too).

    Raises:
        ValueError: a shape, dtype or option outside the above.
        NotImplementedError: dropout_p other than 0.0.

    Devices: CPU, MPS, Meta; ``torch.compile``, ``torch.export`` and AOTInductor. Autocast as torch's own. No gradient.
    Reference: :func:`torch_metal_ops.reference.sdpa`. Online softmax after FlashAttention (Dao et al., 2022).

    Example:
        >>> q, k = torch.randn(1, 8, 1, 80), torch.randn(1, 2, 100, 80)
        >>> sdpa(q, k, k, enable_gqa=True, seqused_k=torch.tensor([17])).shape
        torch.Size([1, 8, 1, 80])
    """
    return torch.ops.metal.sdpa(  # type: ignore[no-any-return]
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
        seqused_k=seqused_k,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks=sinks,
    )
