"""Kernels that nobody here wrote: the Metal headers in the torch wheel, unmodified, against torch on the CPU.

All of them run in check mode: shipped kernels have no findings.
"""

import functools
import struct
from pathlib import Path

import pytest
import torch

from simulator import msl

INCLUDE = Path(torch.__file__).parent / "include"
KERNELS = "ATen/native/mps/kernels"
METAL = {torch.float32: "float", torch.half: "half", torch.bfloat16: "bfloat", torch.int32: "int", torch.uint8: "uchar"}
METAL |= {torch.int64: "long", torch.int16: "short", torch.int8: "char", torch.bool: "bool"}
FLOATS = [torch.float32, torch.half, torch.bfloat16]

# A kernel that sums in float and rounds its inputs and its result, against float64.
TOLERANCE = {torch.float32: 2e-6, torch.half: 2e-3, torch.bfloat16: 1.6e-2}


@functools.cache
def library(*headers: str, body: str = "") -> msl.Library:
    includes = "".join(f"#include <{header}>\n" for header in headers)
    return msl.compile(f"#include <metal_stdlib>\nusing namespace metal;\n{includes}{body}", [INCLUDE], check=True)


def run(kernel: msl.Kernel, arguments: dict, **shape) -> msl.Run:
    result = kernel.run(arguments, **shape)
    assert not result.findings, "\n".join(map(str, result.findings))
    return result


def uints(*values: int) -> bytes:
    return struct.pack(f"{len(values)}I", *values)


def ints(*values: int) -> bytes:
    return struct.pack(f"{len(values)}i", *values)


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error <= TOLERANCE[actual.dtype], error.item()


def qkv(dtype, heads, kv_heads, queries, keys, head_dim):
    shapes = [(2, heads, queries, head_dim), (2, kv_heads, keys, head_dim), (2, kv_heads, keys, head_dim)]
    return [torch.randn(shape).to(dtype) for shape in shapes]


def attention(q, k, v, mask=None, causal=False):
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    mask = mask.double() if mask is not None and mask.is_floating_point() else mask
    q, k, v = q.double(), k.double(), v.double()
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


def random_mask(kind, shape, dtype):
    if kind == "none":
        return None
    return torch.rand(shape) > 0.3 if kind == "bool" else torch.randn(shape).to(dtype)


@pytest.mark.parametrize("two_pass", [False, True], ids=["one_pass", "two_pass"])
@pytest.mark.parametrize(
    "dtype, head_dim, mask, causal",
    [
        (torch.float32, 128, "none", False),
        (torch.half, 64, "none", True),
        (torch.bfloat16, 96, "bool", False),
        (torch.half, 256, "float", False),
    ],
)
def test_decode_attention(dtype, head_dim, mask, causal, two_pass):
    heads, kv_heads, queries, keys = 4, 2, 2, 70
    q, k, v = qkv(dtype, heads, kv_heads, queries, keys, head_dim)
    values = random_mask(mask, (2, heads, queries, keys), dtype)
    out = torch.full_like(q, torch.nan)
    decode = library("c10/metal/common.h", f"{KERNELS}/DecodeAttention.h")
    name = METAL[dtype]
    suffix = {"none": "none", "bool": "bool", "float": name}[mask] + ("_causal" if causal else "")
    strides = [0, 0, 0, 0] if values is None else [values.stride(i) for i in (3, 2, 1, 0)]
    inputs = [
        uints(heads // kv_heads),
        uints(keys),
        uints(q.stride(1), k.stride(1), v.stride(1), 0),
        uints(q.stride(2), k.stride(2), v.stride(2), 0),
        struct.pack("f", head_dim**-0.5),
        bytes(4) if values is None else values,
        uints(*strides),
        uints(q.stride(0), k.stride(0), v.stride(0), heads),
    ]
    rows = 2 * heads
    if not two_pass:
        kernel = decode.kernel(f"sdpa_vector_{name}_{head_dim}_{head_dim}_mask{suffix}")
        arguments = dict(enumerate([q, k, v, out, *inputs]))
        run(kernel, arguments, groups=(rows, queries, 1), group=(1024, 1, 1), uninitialised=[3])
    else:
        partial = torch.full((rows, queries, 32, head_dim), torch.nan, dtype=dtype)
        sums, maxima = torch.empty(2, rows, queries, 32).unbind()
        first = decode.kernel(f"sdpa_vector_2pass_1_{name}_{head_dim}_{head_dim}_mask{suffix}")
        arguments = dict(enumerate([q, k, v, partial, sums, maxima, *inputs]))
        run(first, arguments, groups=(rows, queries, 32), group=(256, 1, 1), uninitialised=[3, 4, 5])
        second = decode.kernel(f"sdpa_vector_2pass_2_{name}_{head_dim}")
        run(second, {0: partial, 1: sums, 2: maxima, 3: out}, groups=(rows, queries, 1), group=(1024, 1, 1))
    assert_near(out, attention(q, k, v, values, causal))


def test_what_decode_attention_reads():
    """Each query of each head reads every key and value once: by hand, 2 queries * 2 heads a key head."""
    heads, kv_heads, queries, keys, head_dim = 4, 2, 2, 70, 64
    q, k, v = qkv(torch.half, heads, kv_heads, queries, keys, head_dim)
    out = torch.empty_like(q)
    values = [q, k, v, out, uints(2), uints(keys)]
    values += [uints(*(t.stride(i) for t in (q, k, v)), 0) for i in (1, 2)]
    values += [struct.pack("f", 0.125), bytes(4), uints(0, 0, 0, 0), uints(*(t.stride(0) for t in (q, k, v)), heads)]
    kernel = library("c10/metal/common.h", f"{KERNELS}/DecodeAttention.h").kernel("sdpa_vector_half_64_64_masknone")
    result = run(kernel, dict(enumerate(values)), groups=(2 * heads, queries, 1), group=(1024, 1, 1))
    for index, tensor in [(1, k), (2, v)]:
        traffic, size = result.cost.buffers[index], tensor.numel() * 2
        assert (traffic.read_bytes, traffic.distinct_read_bytes) == (4 * size, size)
        assert traffic.reads == 4 * size // 4  # a lane owns two halves of a key
        assert traffic.writes == 0
    assert result.cost.buffers[3].distinct_written_bytes == result.cost.buffers[3].written_bytes == out.numel() * 2
    # A simd_sum a key; after the keys a simd_max, a simd_sum, and one for each of a lane's two elements, in 32 simdgroups.
    assert result.cost.simd_operations == 16 * (keys + 32 * 4)
    # One after the scores are shared, two for each of the two elements.
    assert result.cost.threadgroup_barriers == 16 * 5


@pytest.mark.parametrize(
    "dtype, head_dim, mask, causal, tile",
    [
        (torch.float32, 64, "none", True, (32, 32, 4)),
        (torch.bfloat16, 128, "none", False, (32, 16, 4)),
        (torch.half, 72, "bool", False, (32, 32, 4)),
        (torch.half, 80, "none", True, (32, 32, 4)),
        (torch.float32, 256, "float", True, (16, 8, 2)),
        (torch.bfloat16, 32, "float", False, (32, 32, 4)),
        (torch.half, 96, "none", False, (32, 32, 4)),
    ],
)
def test_prefill_attention(dtype, head_dim, mask, causal, tile):
    heads, kv_heads, queries = 2, 1, 39
    rows, columns, simdgroups = tile
    q, k, v = qkv(dtype, heads, kv_heads, queries, queries, head_dim)
    values = random_mask(mask, (2, heads, queries, queries), dtype)
    out = torch.full_like(q, torch.nan)
    name = {torch.float32: "float32", torch.half: "float16", torch.bfloat16: "bfloat16"}[dtype]
    mask_name = "bool_" if mask == "bool" else name
    kernel = library("c10/metal/utils.h", f"{KERNELS}/PrefillAttention.h").kernel(
        f"prefill_attention_{name}_bq{rows}_bk{columns}_bd{head_dim}_wm{simdgroups}_wn1"
        f"_hm{int(mask != 'none')}_dc{int(causal)}_mask{mask_name}"
    )
    strides = [s for t in (q, k, v, out) for s in t.stride()[:3]]
    params = ints(2, heads, head_dim, queries, queries, heads // kv_heads) + struct.pack("ff", head_dim**-0.5, 1.0)
    mask_strides = ints(*values.stride()) if values is not None else bytes(16)
    run(
        kernel,
        {
            0: q,
            1: k,
            2: v,
            3: out,
            4: params + ints(*strides),
            5: mask_strides,
            6: bytes(4) if values is None else values,
        },
        groups=(-(-queries // rows), heads, 2),
        group=(32, simdgroups, 1),
        uninitialised=[3],
    )
    if causal and values is not None:
        hidden = torch.ones(queries, queries, dtype=torch.bool).triu(1)
        values = values.float().masked_fill(hidden, -torch.inf)
        causal = False
    assert_near(out, attention(q, k, v, values, causal))


def numbers(dtype, *shape):
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(-90, 90, shape).to(dtype)


def assert_sorted(x, values, indices, descending):
    assert torch.equal(values, x.sort(dim=-1, descending=descending).values)
    assert torch.equal(x.gather(-1, indices), values)
    assert torch.equal(indices.sort().values, torch.arange(x.shape[-1]).expand_as(indices))


SORT = ("c10/metal/common.h", "c10/metal/utils.h", f"{KERNELS}/SortMerge.h", f"{KERNELS}/SortRadix.h")
SORT = (*SORT, f"{KERNELS}/SortTopK.h")


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_sort_in_one_threadgroup(dtype, descending, stable):
    x = numbers(dtype, 2, 230)
    values, indices = torch.empty_like(x), torch.empty(2, 230, dtype=torch.int64)
    kernel = library(*SORT).kernel(f"sort_block_{METAL[dtype]}_tptg64{'_stable' if stable else ''}")
    arguments = {0: x, 1: values, 2: indices, 3: ints(230), 4: struct.pack("qq", 1, 230), 5: bytes([descending])}
    run(kernel, arguments, groups=(1, 2, 1), group=(64, 1, 1), uninitialised=[1, 2])
    assert_sorted(x, values, indices, descending)
    if stable:
        assert torch.equal(indices, x.sort(dim=-1, descending=descending, stable=True).indices)


@pytest.mark.parametrize("dtype", [torch.half, torch.int32])
def test_sort_by_merging_blocks(dtype):
    size, block, name = 700, 128, METAL[dtype]
    blocks = -(-size // block)
    x = numbers(dtype, 2, size)
    values, indices = torch.empty_like(x), torch.empty(2, size, dtype=torch.int32)
    sort = library(*SORT)
    arguments = {0: x, 1: values, 2: indices, 3: ints(size), 4: struct.pack("qq", 1, size), 5: b"\0"}
    run(sort.kernel(f"mb_sort_block_{name}_tptg32"), arguments, groups=(blocks, 2, 1), group=(32, 1, 1))
    tiles = 2
    while tiles // 2 < blocks:
        last = tiles >= blocks
        merged, positions = torch.empty_like(x), torch.empty(2, size, dtype=torch.int64 if last else torch.int32)
        kernel = sort.kernel(f"mb_merge_{'final_' if last else ''}{name}_tptg32")
        arguments = {0: values, 1: indices, 2: merged, 3: positions, 4: ints(size, tiles, 0, 0), 5: b"\0"}
        run(kernel, arguments, groups=(blocks, 2, 1), group=(32, 1, 1), uninitialised=[2, 3])
        values, indices, tiles = merged, positions, tiles * 2
    assert_sorted(x, values, indices, descending=False)


@pytest.mark.parametrize("fused", [False, True], ids=["scan", "fused"])
@pytest.mark.parametrize("dtype, threads, elements, bits", [(torch.uint8, 512, 8, 4), (torch.half, 512, 4, 8)])
def test_radix_sort(dtype, threads, elements, bits, fused):
    size, name = 5000, METAL[dtype]
    blocks = -(-size // (threads * elements))
    suffix = f"{name}_{bits}bit" + ("" if threads * elements == 4096 else f"_tptg{threads}")
    sort = library(*SORT)
    x = numbers(dtype, 1, size)
    keys, values = x, torch.zeros(1, size, dtype=torch.int32)
    passes = x.element_size() * 8 // bits
    for i in range(passes):
        last = i == passes - 1
        histogram = torch.zeros(1 << bits, blocks, dtype=torch.int32)
        dims = ints(size, blocks, i * bits, 0)
        group = dict(groups=(blocks, 1, 1), group=(threads, 1, 1))
        run(sort.kernel(f"radix_count_{suffix}"), {0: keys, 1: histogram, 2: dims, 3: b"\0"}, **group)
        if not fused:
            scan = {0: histogram, 1: ints(histogram.numel())}
            run(sort.kernel("radix_scan"), scan, groups=(1, 1, 1), group=(1024, 1, 1))
        out = torch.empty_like(x)
        positions = torch.empty(1, size, dtype=torch.int64 if last else torch.int32)
        kernel = sort.kernel(f"radix_scatter_{'fused_' if fused else ''}{'final_' if last else ''}{suffix}")
        arguments = {0: keys, 1: values, 2: out, 3: positions, 4: histogram, 5: dims, 6: bytes([0, i == 0])}
        run(kernel, arguments, **group)
        keys, values = out, positions
    expected = x.sort(stable=True)
    assert torch.equal(keys, expected.values)
    assert torch.equal(values, expected.indices)


def test_top_k():
    x = torch.randn(3, 400)
    values, indices = torch.empty(3, 9), torch.empty(3, 9, dtype=torch.int64)
    arguments = {0: x, 1: values, 2: indices, 3: ints(400), 4: struct.pack("qq", 1, 400), 5: b"\1", 6: ints(0, 9)}
    run(library(*SORT).kernel("sort_block_topk_float_tptg128"), arguments, groups=(1, 3, 1), group=(128, 1, 1))
    expected = x.topk(9)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices, expected.indices)


REDUCTIONS = """
template <typename T>
kernel void reduce(device const T* x, device float* out, device int* where, uint i [[thread_position_in_threadgroup]],
                   uint n [[threads_per_threadgroup]]) {
  threadgroup c10::metal::opmath_t<T> sums[32];
  threadgroup T extremes[32];
  threadgroup int positions[32];
  float total = c10::metal::threadgroup_sum(sums, x[i], i, n);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float largest = c10::metal::threadgroup_max(extremes, x[i], i, n);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float smallest = c10::metal::threadgroup_min(extremes, x[i], i, n);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int first = c10::metal::threadgroup_argmax(extremes, positions, x[i], int(i), i, n);
  if (i == 0) {
    out[0] = total;
    out[1] = largest;
    out[2] = smallest;
    *where = first;
  }
}
template [[host_name("reduce_float")]] [[kernel]] decltype(reduce<float>) reduce<float>;
template [[host_name("reduce_half")]] [[kernel]] decltype(reduce<half>) reduce<half>;
template [[host_name("reduce_int")]] [[kernel]] decltype(reduce<int>) reduce<int>;
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.half, torch.int32])
def test_reductions_over_a_threadgroup(dtype):
    x = torch.randperm(96).to(dtype) - 40
    out, where = torch.empty(3), torch.empty(1, dtype=torch.int32)
    kernel = library("c10/metal/reduction_utils.h", body=REDUCTIONS).kernel(f"reduce_{METAL[dtype]}")
    result = run(kernel, {0: x, 1: out, 2: where}, groups=(1, 1, 1), group=(96, 1, 1))
    assert out.tolist() == [x.sum(), x.max(), x.min()]
    assert where.item() == x.argmax()
    assert result.warnings  # the second stage reduces over the three lanes that hold a partial result


SPECIAL = [
    "erf",
    "erfinv",
    "log_gamma",
    "digamma",
    "i0",
    "i0e",
    "i1",
    "bessel_j0_forward",
    "bessel_y1_forward",
    "modified_bessel_k0_forward",
]
SPECIAL_BODY = """
kernel void special(device const float* x, device float* out, uint i [[thread_position_in_grid]]) {{
  out[i] = c10::metal::{name}(x[i]);
}}
"""


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name):
    x = torch.linspace(0.05, 0.95, 64)
    out = torch.empty(64)
    kernel = library("c10/metal/special_math.h", body=SPECIAL_BODY.format(name=name)).kernel("special")
    run(kernel, {0: x, 1: out}, threads=(64, 1, 1), group=(32, 1, 1))
    special = torch.special
    reference = {"log_gamma": special.gammaln, "bessel_j0_forward": special.bessel_j0}
    reference |= {"bessel_y1_forward": special.bessel_y1, "modified_bessel_k0_forward": special.modified_bessel_k0}
    expected = reference.get(name, getattr(special, name, None))(x.double())
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-6)


RANDOM = """
kernel void random(device uint4* out, constant long2& seed, uint i [[thread_position_in_grid]]) {
  out[i] = c10::metal::philox4::rand(seed.x, seed.y + i);
}
"""


def test_random_bits_are_those_of_philox():
    """Against Philox 4x32-10 in Python, from its definition."""
    out = torch.zeros(8, 4, dtype=torch.int32)
    kernel = library("c10/metal/random.h", body=RANDOM).kernel("random")
    run(kernel, {0: out, 1: struct.pack("qq", 0x123456789A, 5)}, threads=(8, 1, 1), group=(8, 1, 1))
    high, low = lambda v: v >> 32, lambda v: v & 0xFFFFFFFF
    for i in range(8):
        c, key = [0, 0, 0, 5 + i], [0x12, 0x3456789A]
        for turn in range(9):  # the header's own count: it makes one round fewer than it is asked for
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [high(b) ^ c[1] ^ key[0], low(b), high(a) ^ c[3] ^ key[1], low(a)]
            key = [low(key[0] + 0x9E3779B9), low(key[1] + 0xBB67AE85)] if turn < 8 else key
        assert [v & 0xFFFFFFFF for v in out[i].tolist()] == c


ELEMENTWISE = """
struct silu_functor {{ template <typename T> T operator()(const T x) {{ return T(x / (1 + ::metal::exp(-float(x)))); }} }};
struct hypot_functor {{ template <typename T> T operator()(const T a, const T b) {{ return T(::metal::sqrt(float(a * a + b * b))); }} }};
REGISTER_UNARY_OP(silu, {T}, {T});
REGISTER_BINARY_OP(hypot, {T}, {T});
"""


@pytest.mark.parametrize("dtype", FLOATS)
def test_elementwise_kernels(dtype):
    name = METAL[dtype]
    elementwise = library("c10/metal/indexing.h", body=ELEMENTWISE.format(T=name))
    x, y = torch.randn(2, 6, 7).to(dtype)
    out = torch.full_like(x, torch.nan)
    run(
        elementwise.kernel(f"silu_dense_{name}_{name}"),
        {0: out, 1: x, 2: uints(42)},
        threads=(11, 1, 1),
        group=(32, 1, 1),
    )
    assert_near(out, torch.nn.functional.silu(x.double()))

    size = x.element_size()
    sizes, strides = (
        struct.pack("qq", 7, 6),
        [struct.pack("qq", *(s * size for s in t)) for t in ((1, 7), (6, 1), (1, 7))],
    )
    x_transposed = x.T.contiguous()
    arguments = {
        0: out,
        1: x_transposed,
        2: y,
        3: sizes,
        4: strides[0],
        5: strides[1],
        6: strides[2],
        7: uints(2, 0, 0, 0),
    }
    run(elementwise.kernel(f"hypot_strided_{name}_{name}"), arguments, threads=(42, 1, 1), group=(32, 1, 1))
    assert_near(out, torch.hypot(x.double(), y.double()))
