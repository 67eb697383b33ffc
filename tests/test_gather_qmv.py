"""metal::gather_qmv: errors, properties, and what does not fit the table of cases."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_metal_ops
from cases import Call
from contract import expect_error
from tolerances import check, same_bits
from torch_metal_ops import gather_qmv, quantize_affine, reference

OP = torch.ops.metal.gather_qmv.default


def _valid(rows: int = 3, E: int = 4, N: int = 5, K: int = 64, group: int = 32, bits: int = 4) -> dict[str, object]:
    w, scales, biases = quantize_affine(torch.randn(E, N, K), bits=bits, group_size=group)
    x, expert_indices = torch.randn(rows, K), torch.arange(rows) % max(E, 1)
    return {
        "x": x, "w": w, "scales": scales, "biases": biases, "expert_indices": expert_indices, "group_size": group
    }  # fmt: skip


def _call(**changes: object) -> Call:
    return Call(OP, tuple({**_valid(), **changes}.values()))


# -- errors


def test_error_x_dtype():
    expect_error(
        ValueError,
        _call(x=torch.ones(3, 64, dtype=torch.int32)),
        """gather_qmv: x must be float32, float16 or bfloat16, got Int. Convert it with .to() first.""",
    )


def test_error_w_dtype():
    expect_error(
        ValueError,
        _call(w=torch.ones(4, 5, 8, dtype=torch.int32)),
        """gather_qmv: w must be uint8, got Int. View packed 32-bit words with .view(torch.uint8).""",
    )


def test_error_scales_dtype():
    expect_error(
        ValueError,
        _call(scales=torch.ones(4, 5, 2, dtype=torch.int32)),
        """gather_qmv: scales must be float32, float16 or bfloat16, got Int. Convert it with .to() first.""",
    )


def test_error_biases_dtype():
    expect_error(
        ValueError,
        _call(biases=torch.ones(4, 5, 2, dtype=torch.int8)),
        """gather_qmv: biases must be float32, float16 or bfloat16, got Char. Convert it with .to() first.""",
    )


def test_error_index_dtype():
    expect_error(
        ValueError,
        _call(expert_indices=torch.zeros(3, dtype=torch.uint8)),
        """gather_qmv: expert_indices must be int32 or int64, got Byte. Convert it with .to(torch.int32) first.""",
    )


def test_error_x_scalar():
    expect_error(
        ValueError, _call(x=torch.tensor(1.0)), """gather_qmv: x must be [..., K], got shape []. Add a dimension."""
    )


def test_error_w_dims():
    expect_error(
        ValueError,
        _call(w=torch.ones(5, 32, dtype=torch.uint8)),
        """gather_qmv: w must be [E, N, K*bits/8], got shape [5, 32]. For one matrix use w.unsqueeze(0), one expert.""",
    )


def test_error_group_size():
    expect_error(
        ValueError,
        _call(group_size=48),
        """gather_qmv: group_size must be one of 16, 32, 64, 128, 256, got 48. Requantise with torch_metal_ops.quantize_affine(weight, group_size=...).""",
    )


def test_error_K_is_no_multiple_of_group_size():
    expect_error(
        ValueError,
        _call(x=torch.randn(3, 48), w=torch.ones(4, 5, 24, dtype=torch.uint8)),
        """gather_qmv: K must be a multiple of group_size, got K=48 and group_size=32. Requantise with a smaller group_size.""",
    )


def test_error_bits():
    expect_error(
        ValueError,
        _call(w=torch.ones(4, 5, 56, dtype=torch.uint8)),
        """gather_qmv: the last dimension of w must be K*bits/8 with bits one of 2, 3, 4, 5, 6, 8, got 56 for K=64. Pack weights with torch_metal_ops.quantize_affine().""",
    )


def test_error_bits_when_there_are_no_inputs():
    expect_error(
        ValueError,
        _call(x=torch.ones(3, 0)),
        """gather_qmv: the last dimension of w must be K*bits/8 with bits one of 2, 3, 4, 5, 6, 8, got 32 for K=0. Pack weights with torch_metal_ops.quantize_affine().""",
    )


def test_error_scales_shape():
    expect_error(
        ValueError,
        _call(scales=torch.ones(4, 5, 3)),
        """gather_qmv: scales must be [E, N, K/group_size] = [4, 5, 2], got shape [4, 5, 3]. Requantise with torch_metal_ops.quantize_affine().""",
    )


def test_error_biases_shape():
    expect_error(
        ValueError,
        _call(biases=torch.ones(4, 1, 2)),
        """gather_qmv: biases must be [E, N, K/group_size] = [4, 5, 2], got shape [4, 1, 2]. Requantise with torch_metal_ops.quantize_affine().""",
    )


def test_error_index_shape():
    expect_error(
        ValueError,
        _call(expert_indices=torch.zeros(4, dtype=torch.int64)),
        """gather_qmv: expert_indices must be x.shape[:-1] or x.shape[:-1] + (top_k,), got shape [4] for x of shape [3, 64]. Give each row of x one expert, or top_k experts.""",
    )


def test_error_index_dims():
    expect_error(
        ValueError,
        _call(expert_indices=torch.zeros(3, 1, 1, dtype=torch.int64)),
        """gather_qmv: expert_indices must be x.shape[:-1] or x.shape[:-1] + (top_k,), got shape [3, 1, 1] for x of shape [3, 64]. Give each row of x one expert, or top_k experts.""",
    )


def test_error_device():
    call = _call()
    with pytest.raises(ValueError) as caught:
        OP(call.args[0], call.args[1].to("meta"), *call.args[2:])
    assert str(caught.value).splitlines()[0] == (
        "gather_qmv: w must be on the device of x, got meta and cpu. Move it with .to() first."
    )


@pytest.mark.parametrize("value", [-2, 4, 2**40])
def test_error_no_such_expert(value):
    call = _call(expert_indices=torch.tensor([0, value, 1]))
    with pytest.raises(IndexError) as caught:
        call.run()
    first = str(caught.value).splitlines()[0]
    assert first == (
        f"gather_qmv: expert_indices must be from 0 to E-1 = 3, or -1, got {value}. Use -1 where a row has no expert."
    )


def test_error_there_are_no_experts():
    call = _call(w=torch.ones(0, 5, 32, dtype=torch.uint8), scales=torch.ones(0, 5, 2), biases=torch.ones(0, 5, 2))
    with pytest.raises(IndexError, match=r"expert_indices must be from 0 to E-1 = -1, or -1, got 0"):
        call.run()


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("value", [-2, 3, 2**31, -(2**40)])
def test_no_such_expert_is_nan_where_data_stays_on_the_device(rows, value):
    """On MPS nobody waits for the indices; on the CPU this is an error, above."""
    if not torch.backends.mps.is_available():
        pytest.skip("torch here has no mps device")
    w, scales, biases = quantize_affine(torch.randn(3, 5, 64), group_size=32)
    x, indices = torch.randn(rows, 64), torch.arange(rows) % 3
    expected = gather_qmv(x, w, scales, biases, indices, 32)
    indices[1], expected[1] = value, torch.nan
    result = gather_qmv(*(tensor.to("mps") for tensor in (x, w, scales, biases, indices)), 32)
    torch.testing.assert_close(result.cpu(), expected, equal_nan=True)


def test_error_more_experts_than_32_bits_count_where_kernels_count_in_them():
    if not torch.backends.mps.is_available():
        pytest.skip("torch here has no mps device")
    w, scales = torch.zeros(1, 1, 8, dtype=torch.uint8), torch.zeros(1, 1, 1)
    w, scales = w.to("mps").expand(2**31, 1, 8), scales.to("mps").expand(2**31, 1, 1)
    x, indices = torch.zeros(1, 16, device="mps"), torch.zeros(1, dtype=torch.int32, device="mps")
    with pytest.raises(NotImplementedError) as caught:
        gather_qmv(x, w, scales, scales, indices, 16)
    assert str(caught.value).splitlines()[0] == (
        "gather_qmv: rows, E, N and K must each be below 2^31 on MPS, got 2147483648. Split the call."
    )


# -- properties


formats = st.tuples(st.sampled_from([2, 3, 4, 5, 6, 8]), st.sampled_from([16, 32, 64, 128, 256]))
# With check(): N from 16 on, so that the largest error of plain torch is no accident.
few = settings(derandomize=True, max_examples=25, deadline=None)


def _quantized(E: int, N: int, groups: int, bits: int, group: int) -> tuple[torch.Tensor, ...]:
    return quantize_affine(torch.randn(E, N, groups * group), bits=bits, group_size=group)


@few
@given(formats, st.integers(1, 30), st.integers(1, 5), st.integers(1, 9), st.integers(1, 3), st.randoms())
def test_permuting_rows_permutes_the_result(format, rows, E, N, groups, random):
    weights = _quantized(E, N, groups, *format)
    x, experts = torch.randn(rows, groups * format[1]), torch.randint(-1, E, (rows,))
    order = torch.tensor(random.sample(range(rows), rows))
    y = gather_qmv(x, *weights, experts, format[1])
    torch.testing.assert_close(gather_qmv(x[order], *weights, experts[order], format[1]), y[order])


@few
@given(formats, st.integers(1, 12), st.integers(1, 9), st.integers(1, 3), st.sampled_from([-2.0, 0.0, 0.5, 4.0]))
def test_linear_in_x(format, rows, N, groups, factor):
    weights = _quantized(2, N, groups, *format)
    x, y = torch.randn(2, rows, groups * format[1])
    experts = torch.randint(2, (rows,))

    def f(x):
        return gather_qmv(x, *weights, experts, format[1])

    assert same_bits(f(factor * x) + 0.0, factor * f(x) + 0.0)  # a power of two is exact; + 0.0 since -0 is 0
    torch.testing.assert_close(f(x + y), f(x) + f(y), atol=1e-3, rtol=1e-4)


@few
@given(formats, st.integers(1, 40), st.integers(16, 60), st.integers(1, 3))
def test_one_expert_is_a_dense_layer(format, rows, N, groups):
    w, scales, biases = _quantized(1, N, groups, *format)
    x = torch.randn(rows, groups * format[1])
    dense = torch_metal_ops.dequantize_affine(w[0], scales[0], biases[0], format[1])
    y = gather_qmv(x, w, scales, biases, torch.zeros(rows, dtype=torch.int64), format[1])
    check(y, x.double() @ dense.double().T, x @ dense.T)


@few
@given(formats, st.integers(9, 40), st.integers(16, 60), st.integers(1, 3))
def test_a_row_alone_is_the_row_among_many(format, rows, N, groups):
    """Few and many rows of an expert take different paths (MLX 3912)."""
    weights = _quantized(1, N, groups, *format)
    x, experts = torch.randn(rows, groups * format[1]), torch.zeros(rows, dtype=torch.int64)
    together = gather_qmv(x, *weights, experts, format[1])
    alone = torch.cat([gather_qmv(x[i : i + 1], *weights, experts[i : i + 1], format[1]) for i in range(rows)])
    truth, eager = (reference.gather_qmv(x, *weights, experts, format[1], dtype=d) for d in (torch.float64, x.dtype))
    check(together, truth, eager)
    check(alone, truth, eager)


# -- large


@pytest.mark.parametrize("rows", [32767, 32768, 32769, 40002])
def test_more_rows_than_16_bits_count(rows):
    weights = quantize_affine(torch.randn(3, 2, 16), group_size=16)
    x, experts = torch.randn(rows, 16), torch.arange(rows) % 3
    y = gather_qmv(x, *weights, experts, 16)
    check(y, *(reference.gather_qmv(x, *weights, experts, 16, dtype=dtype) for dtype in (torch.float64, x.dtype)))


@pytest.mark.parametrize("rows", [1, 8])
def test_expert_beyond_4_gib(rows):
    """The last expert begins 2^32 bytes behind the first; only the pages of the two are touched (vLLM 50220)."""
    near, scales, biases = quantize_affine(torch.randn(2, 4, 32), group_size=32)
    memory = mmap.mmap(-1, 2**32 + near[1].numel())
    far = torch.frombuffer(memory, dtype=torch.uint8).as_strided(near.shape, (2**32, 16, 1))
    far.copy_(near)
    x, experts = torch.randn(rows, 32), torch.ones(rows, dtype=torch.int64)
    assert same_bits(gather_qmv(x, far, scales, biases, experts, 32), gather_qmv(x, near, scales, biases, experts, 32))


# -- the other instruction sets

_CONTRACT = """
import sys, pytest
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", "gather_qmv and matches", "tests/test_contract.py"]))
"""


def test_without_wide_vectors():
    root = Path(__file__).parents[1]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run([sys.executable, "-c", _CONTRACT], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
