"""metal::sdpa: its errors, properties of attention, and cases that fit no table."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_metal_ops
from cases import Call
from contract import expect_error
from tolerances import check

inf = float("inf")


def _call(q=(1, 4, 2, 8), k=(1, 2, 6, 8), v=(1, 2, 6, 8), dtypes=(torch.float32,) * 3, **kwargs) -> Call:
    tensors = tuple(torch.ones(shape, dtype=dtype) for shape, dtype in zip((q, k, v), dtypes, strict=True))
    return Call(torch.ops.metal.sdpa.default, tensors, {"enable_gqa": True, **kwargs})


# -- errors


def test_error_query_dtype():
    expect_error(
        ValueError,
        _call(dtypes=(torch.float64,) * 3),
        """sdpa: query must be float32, float16 or bfloat16, got Double. Convert it with .to() first.""",
    )


def test_error_key_dtype():
    expect_error(
        ValueError,
        _call(dtypes=(torch.float32, torch.float16, torch.float32)),
        """sdpa: query and key must have one dtype, got Float and Half. Convert one with .to() first.""",
    )


def test_error_value_dtype():
    expect_error(
        ValueError,
        _call(dtypes=(torch.float32, torch.float32, torch.float16)),
        """sdpa: query and value must have one dtype, got Float and Half. Convert one with .to() first.""",
    )


def test_error_mask_dtype():
    expect_error(
        ValueError,
        _call(attn_mask=torch.ones(2, 6, dtype=torch.int64)),
        """sdpa: attn_mask must be bool, float32, float16 or bfloat16, got Long. Convert it with .to(torch.bool), where True means attend.""",
    )


def test_error_seqused_dtype():
    expect_error(
        ValueError,
        _call(seqused_k=torch.ones(1)),
        """sdpa: seqused_k must be int32 or int64, got Float. Convert it with .to(torch.int32) first.""",
    )


def test_error_sinks_dtype():
    expect_error(
        ValueError,
        _call(sinks=torch.ones(4, dtype=torch.int32)),
        """sdpa: sinks must be float32, float16 or bfloat16, got Int. Convert it with .to() first.""",
    )


def test_error_five_dimensions():
    expect_error(
        ValueError,
        _call(q=(1, 1, 4, 2, 8), k=(1, 1, 2, 6, 8), v=(1, 1, 2, 6, 8)),
        """sdpa: query, key and value must all be [B, H, L, D] or all [H, L, D], got shapes [1, 1, 4, 2, 8], [1, 1, 2, 6, 8] and [1, 1, 2, 6, 8]. Flatten further batch dimensions into one.""",
    )


def test_error_mixed_dimensions():
    expect_error(
        ValueError,
        _call(k=(2, 6, 8)),
        """sdpa: query, key and value must all be [B, H, L, D] or all [H, L, D], got shapes [1, 4, 2, 8], [2, 6, 8] and [1, 2, 6, 8]. Flatten further batch dimensions into one.""",
    )


def test_error_head_sizes_differ():
    expect_error(
        ValueError,
        _call(k=(1, 2, 6, 9)),
        """sdpa: query and key must have one head size, got 8 and 9. Check the last dimension of both.""",
    )


def test_error_key_head_size_too_large():
    expect_error(
        ValueError,
        _call(q=(1, 4, 2, 577), k=(1, 2, 6, 577)),
        """sdpa: Dk must be from 1 to 576, got 577. Split larger heads.""",
    )


def test_error_key_head_size_zero():
    expect_error(
        ValueError,
        _call(q=(1, 4, 2, 0), k=(1, 2, 6, 0)),
        """sdpa: Dk must be from 1 to 576, got 0. Split larger heads.""",
    )


def test_error_value_head_size_too_large():
    expect_error(
        ValueError,
        _call(v=(1, 2, 6, 513)),
        """sdpa: Dv must be from 1 to 512, got 513. Split a larger value along its last dimension.""",
    )


def test_error_value_heads():
    expect_error(
        ValueError,
        _call(v=(1, 1, 6, 8)),
        """sdpa: key and value must have the same number of heads, got 2 and 1. Expand the one with fewer.""",
    )


def test_error_value_length():
    expect_error(
        ValueError,
        _call(v=(1, 2, 7, 8)),
        """sdpa: key and value must have the same length, got 6 and 7. Slice the longer one.""",
    )


def test_error_gqa_not_enabled():
    expect_error(
        ValueError,
        _call(enable_gqa=False),
        """sdpa: query and key must have the same number of heads unless enable_gqa=True, got 4 and 2. Pass enable_gqa=True.""",
    )


def test_error_no_key_head():
    expect_error(
        ValueError,
        _call(k=(1, 0, 6, 8), v=(1, 0, 6, 8)),
        """sdpa: key must have at least one head when query has any, got 0 for 4. Check the head dimension.""",
    )


def test_error_heads_not_divisible():
    expect_error(
        ValueError,
        _call(q=(1, 5, 2, 8)),
        """sdpa: the heads of query must be a multiple of the heads of key, got 5 and 2. Check the head dimension.""",
    )


def test_error_batches():
    expect_error(
        ValueError,
        _call(q=(2, 4, 2, 8), k=(3, 2, 6, 8)),
        """sdpa: the batch sizes of query, key and value must be equal or 1, got 2, 3 and 1. Expand or slice one of them.""",
    )


def test_error_mask_shape():
    expect_error(
        ValueError,
        _call(attn_mask=torch.ones(2, 5)),
        """sdpa: attn_mask must broadcast to [B, Hq, Lq, Lk] = [1, 4, 2, 6], got shape [2, 5]. Add or expand dimensions.""",
    )


def test_error_mask_dimensions():
    expect_error(
        ValueError,
        _call(q=(4, 2, 8), k=(2, 6, 8), v=(2, 6, 8), attn_mask=torch.ones(1, 4, 2, 6)),
        """sdpa: attn_mask must broadcast to [Hq, Lq, Lk] = [4, 2, 6], got shape [1, 4, 2, 6]. Add or expand dimensions.""",
    )


def test_error_seqused_shape():
    expect_error(
        ValueError,
        _call(seqused_k=torch.ones(2, dtype=torch.int32)),
        """sdpa: seqused_k must be [B] = [1], got shape [2]. Give one length a batch.""",
    )


def test_error_sinks_shape():
    expect_error(
        ValueError,
        _call(sinks=torch.ones(2)),
        """sdpa: sinks must be [Hq] = [4], got shape [2]. Give one logit a query head.""",
    )


def test_error_window_without_causal():
    expect_error(
        ValueError,
        _call(sliding_window=4),
        """sdpa: sliding_window needs is_causal=True, got is_causal=False. Pass is_causal=True, or a mask for a window that looks ahead.""",
    )


def test_error_window_zero():
    expect_error(
        ValueError,
        _call(sliding_window=0, is_causal=True),
        """sdpa: sliding_window must be at least 1, got 0. Pass None for no window.""",
    )


def test_error_softcap():
    expect_error(
        ValueError, _call(softcap=-1.0), """sdpa: softcap must be a finite number >= 0, got -1. Pass 0.0 for no cap."""
    )


def test_error_softcap_inf():
    expect_error(
        ValueError, _call(softcap=inf), """sdpa: softcap must be a finite number >= 0, got inf. Pass 0.0 for no cap."""
    )


def test_error_dropout():
    expect_error(
        NotImplementedError,
        _call(dropout_p=0.1),
        """sdpa: dropout_p must be 0.0, got 0.1. Apply dropout outside; these kernels are for inference.""",
    )


def test_error_devices():
    call = _call()
    with pytest.raises(ValueError, match="sdpa: attn_mask must be on the device of query, got meta and cpu"):
        call.op(*call.args, attn_mask=torch.ones(2, 6, device="meta"), enable_gqa=True)


def test_error_more_keys_than_32_bits_count_where_kernels_count_in_them():
    if not torch.backends.mps.is_available():
        pytest.skip("torch here has no mps device")
    q, k = (torch.zeros(1, 1, 1, 8, device="mps") for _ in range(2))
    k = k.expand(1, 1, 2**30, 8)
    with pytest.raises(NotImplementedError) as caught:
        torch_metal_ops.sdpa(q, k, k, seqused_k=torch.ones(1, dtype=torch.int32, device="mps"))
    assert str(caught.value).splitlines()[0] == (
        "sdpa: B, Hq*Lq and Lk must each be below 2^30 on MPS, got 1073741824. Split the call."
    )


def test_lengths_near_the_limit_on_mps():
    """Where a few keys more would be too many: all counts still fit, and only what is in use is read."""
    if not torch.backends.mps.is_available():
        pytest.skip("torch here has no mps device")
    q, k, v = torch.randn(1, 4, 1, 64), torch.randn(1, 1, 1, 64), torch.randn(1, 1, 1, 64)
    used = torch.tensor([40], dtype=torch.int32)
    far = [t.to("mps").expand(1, 1, 2**30 - 1, 64) for t in (k, v)]
    options = {"is_causal": True, "sliding_window": 2**40, "enable_gqa": True}
    out = torch_metal_ops.sdpa(q.to("mps"), *far, seqused_k=used.to("mps"), **options)
    torch.testing.assert_close(out.cpu(), v.expand(1, 4, 1, 64))


# -- properties

_sizes = st.fixed_dictionaries(
    {
        "B": st.integers(1, 2),
        "Hkv": st.integers(1, 3),
        "group": st.sampled_from([1, 2, 3, 5]),
        "Lq": st.sampled_from([1, 2, 5, 11, 40]),
        "Lk": st.sampled_from([1, 7, 64, 97, 130, 600]),
        "Dk": st.sampled_from([1, 8, 13, 40, 64]),
        "Dv": st.sampled_from([1, 8, 17, 48]),
    }
)
_each_size = settings(derandomize=True, max_examples=25, deadline=None)


def _inputs(sizes: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    B, Hkv, Lq, Lk = (sizes[name] for name in ("B", "Hkv", "Lq", "Lk"))
    shapes = (B, Hkv * sizes["group"], Lq, sizes["Dk"]), (B, Hkv, Lk, sizes["Dk"]), (B, Hkv, Lk, sizes["Dv"])
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


@_each_size
@given(_sizes, st.booleans())
def test_constant_values_come_back(sizes, causal):
    q, k, v = _inputs(sizes)
    out = torch_metal_ops.sdpa(q, k, torch.full_like(v, 1.5), is_causal=causal, enable_gqa=True)
    torch.testing.assert_close(out, torch.full_like(out, 1.5))


@_each_size
@given(_sizes, st.booleans())
def test_a_vector_added_to_all_keys_changes_nothing(sizes, causal):
    q, k, v = _inputs(sizes)
    shifted = k + torch.randn(sizes["Dk"], generator=torch.Generator().manual_seed(4))
    a, b = (torch_metal_ops.sdpa(q, keys, v, is_causal=causal, enable_gqa=True) for keys in (k, shifted))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@_each_size
@given(_sizes)
def test_causal_rows_ignore_later_keys(sizes):
    q, k, v = _inputs(sizes)
    kwargs = {"is_causal": True, "enable_gqa": True}
    before = torch_metal_ops.sdpa(q, k, v, **kwargs)
    middle = max(1, min(sizes["Lq"], sizes["Lk"]) // 2)
    k[:, :, middle:], v[:, :, middle:] = 7.0, -9.0
    after = torch_metal_ops.sdpa(q, k, v, **kwargs)
    assert torch.equal(before[:, :, :middle], after[:, :, :middle])


@_each_size
@given(_sizes, st.booleans())
def test_grouped_heads_are_repeated_heads(sizes, causal):
    q, k, v = _inputs(sizes)
    grouped = torch_metal_ops.sdpa(q, k, v, is_causal=causal, enable_gqa=True)
    many = (t.repeat_interleave(sizes["group"], 1) for t in (k, v))
    repeated = torch_metal_ops.sdpa(q, *many, is_causal=causal)
    torch.testing.assert_close(grouped, repeated)


@_each_size
@given(_sizes, st.integers(0, 50))
def test_keys_in_use_are_a_slice(sizes, used):
    q, k, v = _inputs(sizes)
    used = min(used, sizes["Lk"])
    length = torch.full((sizes["B"],), used)
    whole = torch_metal_ops.sdpa(q, k, v, enable_gqa=True, seqused_k=length)
    part = torch_metal_ops.sdpa(q, k[:, :, :used], v[:, :, :used], enable_gqa=True)
    assert torch.equal(whole, part)


# -- the reference, by hand


def test_reference_two_keys():
    q = torch.tensor([1.0, 2.0]).view(1, 1, 2, 1)
    k = torch.tensor([0.0, torch.log(torch.tensor(3.0))]).view(1, 1, 2, 1)
    v = torch.tensor([4.0, 8.0]).view(1, 1, 2, 1)
    # weights 1 : 3, then 1 : 9
    out = torch_metal_ops.reference.sdpa(q, k, v)
    torch.testing.assert_close(out.flatten(), torch.tensor([7.0, 7.6], dtype=torch.float64), rtol=1e-7, atol=0)
    causal = torch_metal_ops.reference.sdpa(q, k, v, is_causal=True)
    torch.testing.assert_close(causal.flatten(), torch.tensor([4.0, 7.6], dtype=torch.float64), rtol=1e-7, atol=0)
    # a sink of 0 is one more weight of 1
    sunk = torch_metal_ops.reference.sdpa(q, k, v, sinks=torch.zeros(1))
    torch.testing.assert_close(sunk.flatten(), torch.tensor([28 / 5, 76 / 11], dtype=torch.float64), rtol=1e-7, atol=0)


def test_reference_hides():
    q = torch.zeros(1, 1, 2, 1)
    k, v = torch.zeros(1, 1, 3, 1), torch.tensor([2.0, 4.0, float("nan")]).view(1, 1, 3, 1)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert torch_metal_ops.reference.sdpa(q, k, v, mask).flatten().tolist() == [3.0, 0.0]
    used = torch.tensor([2])
    assert torch_metal_ops.reference.sdpa(q, k, v, seqused_k=used, is_causal=True).flatten().tolist() == [2.0, 3.0]
    window = torch_metal_ops.reference.sdpa(q, k, v, seqused_k=used, is_causal=True, sliding_window=1)
    assert window.flatten().tolist() == [2.0, 4.0]


# -- what fits no table


def test_output_lies_as_the_query_does():
    q = torch.randn(2, 5, 4, 8).transpose(1, 2)
    out = torch_metal_ops.sdpa(q, q, q)
    assert out.transpose(1, 2).is_contiguous()


def test_offsets_beyond_32_bits():
    # A large reservation, of which a few pages are touched.
    far = 2**31 + 5
    memory = torch.UntypedStorage(4 * far + 128)
    base = torch.empty(0, dtype=torch.bfloat16).set_(memory)
    k = base.as_strided((1, 1, 3, 8), (0, 0, far, 1))
    k.copy_(torch.randn(1, 1, 3, 8))
    q = torch.randn(1, 2, 1, 8, dtype=torch.bfloat16)
    call = {"enable_gqa": True}
    assert torch.equal(
        torch_metal_ops.sdpa(q, k, k, **call), torch_metal_ops.sdpa(q, k.contiguous(), k.contiguous(), **call)
    )
    mask = base.view(torch.bool).as_strided((2, 3), (2 * far, 1))
    mask.copy_(torch.tensor([[True, False, True], [False, True, True]]))
    q, k = torch.randn(1, 1, 2, 8), torch.randn(1, 1, 3, 8)
    assert torch.equal(torch_metal_ops.sdpa(q, k, k, mask), torch_metal_ops.sdpa(q, k, k, mask.contiguous()))


def test_long_rows_in_bfloat16():
    q, k = torch.randn(1, 1, 1, 64).bfloat16(), torch.randn(1, 1, 16384, 64).bfloat16()
    exact = torch_metal_ops.reference.sdpa(q, k, k)
    check(torch_metal_ops.sdpa(q, k, k), exact, exact.bfloat16())


def test_baseline_instruction_set():
    """The whole table again in a process that may use no more than SSE2 (or NEON)."""
    if os.environ.get("ATEN_CPU_CAPABILITY") == "default":
        pytest.skip("this is that process")
    tests = os.path.join(os.path.dirname(__file__), "test_contract.py")
    command = [sys.executable, "-m", "pytest", "-q", "-x", tests, "-k", "sdpa and matches_reference"]
    result = subprocess.run(
        command, env={**os.environ, "ATEN_CPU_CAPABILITY": "default"}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-3000:]
