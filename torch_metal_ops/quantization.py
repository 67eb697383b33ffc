"""Affine quantisation in MLX's layout: what gather_qmv reads."""

import torch
from torch import Tensor

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (16, 32, 64, 128, 256)


# Eight weights are `bits` whole bytes for any number of bits, and fit into the low end of one 64-bit word.


def _pack(q: Tensor, bits: int) -> Tensor:
    """Weights ``[..., K]``, uint8, to a little-endian bit stream ``[..., K*bits/8]``, uint8."""
    words = torch.zeros_like(q[..., ::8], dtype=torch.int64)
    for i in range(8):
        words |= q[..., i::8].long() << (bits * i)
    return words.unsqueeze(-1).view(torch.uint8)[..., :bits].flatten(-2)


def _unpack(packed: Tensor, bits: int) -> Tensor:
    """The inverse of :func:`_pack`."""
    words = torch.nn.functional.pad(packed.unflatten(-1, (-1, bits)), (0, 8 - bits)).view(torch.int64)
    return torch.cat([((words >> (bits * i)) & (2**bits - 1)).to(torch.uint8) for i in range(8)], -1).flatten(-2)


def quantize_affine(weight: Tensor, bits: int = 4, group_size: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Round each group of weights to ``2**bits`` evenly spaced values between its minimum and maximum.

    A weight is then ``scale * q + bias`` with q from 0 to ``2**bits - 1``.

    Args:
        weight: ``[..., K]``, float32, float16 or bfloat16; K a multiple of group_size.
        bits: 2, 3, 4, 5, 6 or 8.
        group_size: weights along K that share a scale and a bias: 16, 32, 64, 128 or 256.

    Returns:
        packed ``[..., K*bits/8]`` uint8, scales and biases ``[..., K/group_size]`` in weight's dtype.

    Raises:
        ValueError: any other dtype, bits, group_size or K.

    Example:
        >>> packed, scales, biases = quantize_affine(torch.randn(4, 64, 128), bits=4, group_size=32)
        >>> packed.shape, scales.shape
        (torch.Size([4, 64, 64]), torch.Size([4, 64, 4]))
    """
    if weight.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(
            f"quantize_affine: weight must be float32, float16 or bfloat16, got {weight.dtype}. "
            "Convert it with .to() first."
        )
    _check_format("quantize_affine", bits, group_size)
    if weight.dim() == 0 or weight.shape[-1] % group_size:
        raise ValueError(
            f"quantize_affine: the last dimension must be a multiple of group_size={group_size}, "
            f"got shape {tuple(weight.shape)}. Pad it, or use a smaller group_size."
        )
    groups = weight.float().unflatten(-1, (-1, group_size))
    low, high = groups.amin(-1), groups.amax(-1)
    # The scale and the bias are rounded before the weights are, which then make up for the rounding. A group of equal
    # weights has scale 0 and is its bias.
    scales = ((high - low) / (2**bits - 1)).to(weight.dtype)
    biases = low.to(weight.dtype)
    steps = (groups - biases.float().unsqueeze(-1)) / scales.float().unsqueeze(-1)
    steps = torch.where(scales.unsqueeze(-1) == 0, 0, steps)
    q = steps.round().clamp(0, 2**bits - 1).to(torch.uint8).flatten(-2)
    return _pack(q, bits), scales, biases


def dequantize_affine(packed: Tensor, scales: Tensor, biases: Tensor, group_size: int = 64) -> Tensor:
    """The weights that packed stands for, ``scale * q + bias``.

    Args:
        packed: ``[..., K*bits/8]``, uint8; bits is inferred from its length and that of scales.
        scales, biases: ``[..., K/group_size]``, one float dtype.
        group_size: 16, 32, 64, 128 or 256.

    Returns:
        ``[..., K]`` in the dtype of scales, computed in that dtype or in float32 if it is shorter.

    Raises:
        ValueError: sizes that belong to no number of bits.

    Example:
        >>> weight = torch.arange(32.0)
        >>> torch.equal(dequantize_affine(*quantize_affine(weight, bits=5, group_size=32), group_size=32), weight)
        True
    """
    K = scales.shape[-1] * group_size
    bits, rest = divmod(packed.shape[-1] * 8, K) if K else (0, 1)
    if rest or bits not in BITS or packed.shape[:-1] != scales.shape[:-1] or scales.shape != biases.shape:
        raise ValueError(
            "dequantize_affine: packed must be [..., K*bits/8] and scales and biases [..., K/group_size] with bits "
            f"one of 2, 3, 4, 5, 6, 8, got shapes {tuple(packed.shape)}, {tuple(scales.shape)} and "
            f"{tuple(biases.shape)} with group_size={group_size}. Pass the tensors as quantize_affine() returned them."
        )
    _check_format("dequantize_affine", bits, group_size)
    compute = torch.promote_types(scales.dtype, torch.float32)
    q = _unpack(packed, bits).unflatten(-1, (-1, group_size)).to(compute)
    weight: Tensor = scales.to(compute).unsqueeze(-1) * q + biases.to(compute).unsqueeze(-1)
    return weight.flatten(-2).to(scales.dtype)


def _check_format(function: str, bits: int, group_size: int) -> None:
    if bits not in BITS:
        raise ValueError(f"{function}: bits must be one of 2, 3, 4, 5, 6, 8, got {bits}. 4 is the usual choice.")
    if group_size not in GROUP_SIZES:
        raise ValueError(
            f"{function}: group_size must be one of 16, 32, 64, 128, 256, got {group_size}. 64 is the usual choice."
        )
