"""metal::gather_qmv: quantised matrix-vector products with a matrix chosen by index."""

import torch
from torch import Tensor


def gather_qmv(x: Tensor, w: Tensor, scales: Tensor, biases: Tensor, expert_indices: Tensor, group_size: int) -> Tensor:
    r"""Multiply each row of ``x`` by the quantised weight matrix of its expert.

    .. math:: y_p = \hat W_{e(p)}\, x_p, \qquad \hat W = \text{scale} \cdot q + \text{bias}

    Dimensions: ``E`` experts, ``K`` inputs, ``N`` outputs, ``G = group_size``.

    Args:
        x: ``[..., K]``, float32, float16 or bfloat16, any strides.
        w: ``[E, N, K*bits/8]``, uint8, a little-endian bit stream along K as MLX packs it (4 bits: the low nibble is
            the even k). ``bits``, one of 2, 3, 4, 5, 6, 8, is inferred. Never copied.
        scales, biases: ``[E, N, K/G]``, each of any float dtype. Never copied.
        expert_indices: int32 or int64, either ``x.shape[:-1]``, one expert a row, or ``x.shape[:-1] + (top_k,)``,
            where each row of x meets each of its experts. -1 means no expert: a row of zeros.
        group_size: weights along K that share a scale and a bias: 16, 32, 64, 128 or 256; must divide ``K``.

    Returns:
        ``expert_indices.shape + (N,)``, contiguous, dtype of ``x``. Sums are accumulated in float32. Rows that share
        an expert are grouped inside; the caller sorts nothing.

    Raises:
        ValueError: a shape, dtype or group size outside the above.
        IndexError: an expert below -1 or from E on, on CPU, before anything is computed. On MPS, where looking would
            mean waiting for the GPU, the row is NaN instead.

    Devices: CPU, MPS, Meta; ``torch.compile``, ``torch.export`` and AOTInductor. No gradient.
    Reference: :func:`torch_metal_ops.reference.gather_qmv`. After MLX ``gather_qmm`` (MIT).

    Example:
        >>> from torch_metal_ops import quantize_affine
        >>> w, s, b = quantize_affine(torch.randn(4, 64, 128), bits=4, group_size=32)
        >>> gather_qmv(torch.randn(2, 128), w, s, b, torch.tensor([3, 0]), 32).shape
        torch.Size([2, 64])
    """
    return torch.ops.metal.gather_qmv(x, w, scales, biases, expert_indices, group_size)  # type: ignore[no-any-return]
