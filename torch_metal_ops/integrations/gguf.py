"""GGUF's block formats that are affine already, repacked for gather_qmv without requantising.

A GGUF file keeps a quantised matrix as rows of 32-weight blocks. In two of its formats a block is exactly what
gather_qmv reads, one scale, one bias and integers, in another order of bits:

    Q4_1: d and m, float16, then 16 bytes. Byte i has weight i in its low half and weight i + 16 in its high half; a
        weight is d * q + m.
    Q8_0: d, float16, then 32 signed bytes. A weight is d * q, which is d * (q + 128) - 128 * d.

Both block layouts are ggml's (MIT).
"""

import torch
from torch import Tensor

GROUP_SIZE = 32

Affine = tuple[Tensor, Tensor, Tensor]


def _split(blocks: Tensor, floats: int) -> tuple[Tensor, Tensor]:
    """The float16 numbers that every block starts with ``[N, groups, floats]``, and the bytes after them."""
    heads, rest = blocks[..., : 2 * floats], blocks[..., 2 * floats :]
    return heads.contiguous().view(torch.float16), rest


def _affine_q4_1(blocks: Tensor) -> Affine:
    numbers, halves = _split(blocks, 2)
    weights = torch.cat([halves & 0xF, halves >> 4], dim=-1)
    packed = weights[..., 0::2] | (weights[..., 1::2] << 4)
    return packed.flatten(-2), numbers[..., 0].contiguous(), numbers[..., 1].contiguous()


def _affine_q8_0(blocks: Tensor) -> Affine:
    numbers, signed = _split(blocks, 1)
    scales = numbers.squeeze(-1).contiguous()
    biases = -128 * scales  # exact: a power of two, unless it leaves float16's range
    if not biases.isfinite().all():
        scales = scales.float()
        biases = -128 * scales
    return (signed ^ 0x80).flatten(-2), scales, biases


_FORMATS = {"Q4_1": (20, _affine_q4_1), "Q8_0": (34, _affine_q8_0)}  # name: bytes a block, how to repack it


def is_affine(format: str) -> bool:
    """Whether :func:`affine_from_gguf` takes this GGUF tensor type."""
    return format in _FORMATS


def affine_from_gguf(data: Tensor, format: str) -> Affine:
    """The same weights as gather_qmv reads them.

    Args:
        data: ``[N, bytes]``, uint8, the rows of one matrix as they are in the file.
        format: GGUF's name of the tensor type, "Q4_1" or "Q8_0".

    Returns:
        packed ``[N, K*bits/8]`` uint8, scales and biases ``[N, K/32]``, float16 as in the file (float32 where a Q8_0
        bias would overflow float16). ``scale * q + bias`` in float32 is bit for bit what gguf dequantises to.

    Raises:
        ValueError: another format, or rows that are no whole number of its blocks.

    Example:
        >>> block = torch.tensor([0, 0x3C, 0, 0x40] + [0x10] * 16, dtype=torch.uint8)  # d = 1, m = 2; weights 0 and 1
        >>> packed, scales, biases = affine_from_gguf(block.view(1, 20), "Q4_1")
        >>> scales.item(), biases.item(), packed[0, 0].item(), packed[0, 8].item()
        (1.0, 2.0, 0, 17)
    """
    if format not in _FORMATS:
        raise ValueError(
            f"affine_from_gguf: format must be one of {', '.join(_FORMATS)}, got {format}. "
            "Dequantise it with gguf.dequantize()."
        )
    size, repack = _FORMATS[format]
    if data.dim() != 2 or data.dtype != torch.uint8 or data.shape[1] % size:
        raise ValueError(
            f"affine_from_gguf: data must be [N, bytes] uint8 in {format} blocks of {size} bytes, got shape "
            f"{tuple(data.shape)}, {data.dtype}. Pass the data of a gguf.ReaderTensor."
        )
    return repack(data.unflatten(-1, (-1, size)))
