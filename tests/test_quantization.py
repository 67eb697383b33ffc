"""quantize_affine and dequantize_affine: MLX's bit order, and errors of half a step at most."""

import expecttest
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_metal_ops import dequantize_affine, quantize_affine
from torch_metal_ops.quantization import BITS, GROUP_SIZES


def test_four_bits_put_the_even_weight_in_the_low_nibble():
    weight = torch.arange(16.0)  # scale 1, bias 0: every weight is its own q
    packed, scales, biases = quantize_affine(weight, bits=4, group_size=16)
    assert packed.tolist() == [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
    assert (scales.item(), biases.item()) == (1.0, 0.0)


def test_three_bits_cross_bytes_as_a_little_endian_stream():
    q = [7, 0, 1, 2, 3, 4, 5, 6] * 2
    packed, _, _ = quantize_affine(torch.tensor(q, dtype=torch.float32), bits=3, group_size=16)
    stream = sum(value << (3 * i) for i, value in enumerate(q))
    assert bytes(packed.tolist()) == stream.to_bytes(6, "little")


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_values_on_the_grid_survive(bits, group_size):
    # The scale is a power of two, so that it and the bias are exact; the first two weights fix the range.
    q = torch.randint(0, 2**bits, (3, 2, group_size))
    q[..., 0], q[..., 1] = 0, 2**bits - 1
    weight = (0.25 * q - 3).flatten(-2)
    restored = dequantize_affine(*quantize_affine(weight, bits, group_size), group_size=group_size)
    assert torch.equal(restored, weight)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    bits=st.sampled_from(BITS), group_size=st.sampled_from(GROUP_SIZES), groups=st.integers(1, 3), seed=st.integers()
)
def test_error_is_half_a_step(bits, group_size, groups, seed):
    generator = torch.Generator().manual_seed(seed % 2**32)
    weight = torch.randn(2, groups * group_size, generator=generator, dtype=torch.float32)
    packed, scales, biases = quantize_affine(weight, bits, group_size)
    error = (dequantize_affine(packed, scales, biases, group_size) - weight).abs().unflatten(-1, (groups, group_size))
    rounding = 4 * torch.finfo(torch.float32).eps * weight.abs().max()
    assert (error <= scales.unsqueeze(-1) / 2 + rounding).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_equal_weights_are_exact(dtype):
    weight = torch.full((2, 64), 0.1, dtype=dtype)
    packed, scales, biases = quantize_affine(weight, bits=4, group_size=32)
    assert scales.dtype == biases.dtype == dtype
    assert torch.equal(dequantize_affine(packed, scales, biases, group_size=32), weight)


def test_empty():
    packed, scales, biases = quantize_affine(torch.empty(0, 3, 64), bits=6, group_size=64)
    assert packed.shape == (0, 3, 48) and scales.shape == biases.shape == (0, 3, 1)
    assert dequantize_affine(packed, scales, biases, group_size=64).shape == (0, 3, 64)


def message(function, *args, **kwargs) -> str:
    with pytest.raises(ValueError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


def test_errors():
    weight, packed, scales = torch.zeros(2, 64), torch.zeros(2, 32, dtype=torch.uint8), torch.zeros(2, 1)
    expect = expecttest.assert_expected_inline
    expect(
        message(quantize_affine, weight, bits=7),
        """quantize_affine: bits must be one of 2, 3, 4, 5, 6, 8, got 7. 4 is the usual choice.""",
    )
    expect(
        message(quantize_affine, weight, group_size=48),
        """quantize_affine: group_size must be one of 16, 32, 64, 128, 256, got 48. 64 is the usual choice.""",
    )
    expect(
        message(quantize_affine, torch.zeros(2, 65)),
        """quantize_affine: the last dimension must be a multiple of group_size=64, got shape (2, 65). Pad it, or use a smaller group_size.""",
    )
    expect(
        message(quantize_affine, torch.tensor(1.0)),
        """quantize_affine: the last dimension must be a multiple of group_size=64, got shape (). Pad it, or use a smaller group_size.""",
    )
    expect(
        message(quantize_affine, weight.int()),
        """quantize_affine: weight must be float32, float16 or bfloat16, got torch.int32. Convert it with .to() first.""",
    )
    expect(
        message(dequantize_affine, packed[:, 1:], scales, scales),
        """dequantize_affine: packed must be [..., K*bits/8] and scales and biases [..., K/group_size] with bits one of 2, 3, 4, 5, 6, 8, got shapes (2, 31), (2, 1) and (2, 1) with group_size=64. Pass the tensors as quantize_affine() returned them.""",
    )
    expect(
        message(dequantize_affine, packed, scales, scales[:1]),
        """dequantize_affine: packed must be [..., K*bits/8] and scales and biases [..., K/group_size] with bits one of 2, 3, 4, 5, 6, 8, got shapes (2, 32), (2, 1) and (1, 1) with group_size=64. Pass the tensors as quantize_affine() returned them.""",
    )
    expect(
        message(dequantize_affine, packed, scales[:, :0], scales[:, :0]),
        """dequantize_affine: packed must be [..., K*bits/8] and scales and biases [..., K/group_size] with bits one of 2, 3, 4, 5, 6, 8, got shapes (2, 32), (2, 0) and (2, 0) with group_size=64. Pass the tensors as quantize_affine() returned them.""",
    )
    expect(
        message(dequantize_affine, packed[:, :24], scales, scales, 48),
        """dequantize_affine: group_size must be one of 16, 32, 64, 128, 256, got 48. 64 is the usual choice.""",
    )
