"""MLX's kernels, unmodified, against torch on the CPU, where a developer has them.

The headers are in MLX's wheel for macOS, which installs on Linux into a folder of its own:

    pip install --target mlx --platform macosx_14_0_arm64 --no-deps --only-binary=:all: mlx-metal
    PYTHONPATH=mlx pytest tests/simulator/test_msl_mlx.py
"""

import functools
import importlib.util
import struct
from pathlib import Path

import pytest
import torch

from simulator import msl

KERNELS = "mlx/backend/metal/kernels"


def include_folder() -> Path | None:
    package = importlib.util.find_spec("mlx")
    for folder in (package and package.submodule_search_locations) or []:
        if (Path(folder) / "include" / KERNELS / "steel").is_dir():
            return Path(folder) / "include"
    return None


INCLUDE = include_folder()
pytestmark = pytest.mark.skipif(
    INCLUDE is None, reason="MLX's kernels are not here: they come with mlx-metal for macOS"
)
TOLERANCE = {torch.float32: 2e-6, torch.half: 2e-3, torch.bfloat16: 1.6e-2}
METAL = {torch.float32: "float", torch.half: "half", torch.bfloat16: "bfloat"}


@functools.cache
def instantiation(headers: tuple[str, ...], function: str) -> msl.Library:
    includes = "".join(f'#include "{KERNELS}/{header}"\n' for header in ("utils.h", *headers))
    source = f'{includes}template [[host_name("k")]] [[kernel]] decltype({function}) {function};\n'
    return msl.compile(source, [INCLUDE], check=True)


def run(headers: tuple[str, ...], function: str, arguments: dict, constants: dict | None = None, **shape) -> msl.Run:
    result = instantiation(headers, function).kernel("k", constants).run(arguments, **shape)
    assert not result.findings, "\n".join(map(str, result.findings))
    return result


def ints(*values: int) -> bytes:
    return struct.pack(f"{len(values)}i", *values)


def longs(*values: int) -> bytes:
    return struct.pack(f"{len(values)}q", *values)


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error <= TOLERANCE[actual.dtype], error.item()


def attention(q, k, v, **kwargs):
    q, k, v = q.double(), k.double(), v.double()
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **kwargs)


SDPA = {20: False, 21: False, 22: False, 23: False, 24: False, 25: False}


@pytest.mark.parametrize("dtype, head_dim", [(torch.float32, 64), (torch.bfloat16, 128), (torch.half, 96)])
def test_sdpa_vector(dtype, head_dim):
    q, k, v = (torch.randn(1, h, n, head_dim).to(dtype) for h, n in ((4, 1), (2, 77), (2, 77)))
    out = torch.full_like(q, torch.nan)
    strides = [longs(t.stride(i)) for t in (k, v) for i in (1, 2)]
    values = [q, k, v, out, ints(2), ints(77), *strides, struct.pack("f", head_dim**-0.5)]
    function = f"sdpa_vector<{METAL[dtype]}, {head_dim}>"
    shape = dict(groups=(4, 1, 1), group=(1024, 1, 1), uninitialised=[3])
    run(("sdpa_vector.h",), function, dict(enumerate(values)), SDPA, **shape)
    assert_near(out, attention(q, k, v))


@pytest.mark.parametrize("variant", ["sdpa_vector_2pass_1", "sdpa_vector_2pass_1_gqa"])
def test_two_pass_decode(variant):
    kv_heads, factor, keys, head_dim, blocks = 2, 4, 150, 64, 32
    q = torch.randn(1, kv_heads * factor, 1, head_dim)
    k, v = torch.randn(2, 1, kv_heads, keys, head_dim).unbind()
    partial, out = torch.full((kv_heads * factor, blocks, head_dim), torch.nan), torch.full_like(q, torch.nan)
    sums, maxima = torch.full((2, kv_heads * factor, blocks), torch.nan).unbind()
    strides = [longs(t.stride(i)) for t in (k, v) for i in (1, 2)]
    first = {0: q, 1: k, 2: v, 3: partial, 4: sums, 5: maxima, 7: ints(keys)}
    first |= dict(enumerate([*strides, struct.pack("f", head_dim**-0.5)], start=8))
    gqa = f", {head_dim}, {factor}, 2" if variant.endswith("gqa") else ""
    function = f"{variant}<float, {head_dim}{gqa}>"
    shape = dict(groups=(kv_heads, 1, blocks), group=(32, factor, 1))
    constants = SDPA | {26: blocks}
    run(("sdpa_vector.h",), function, first, constants, **shape)
    second = {0: partial, 1: sums, 2: maxima, 3: out, 4: ints(blocks)}
    function = f"sdpa_vector_2pass_2<float, {head_dim}>"
    shape = dict(groups=(kv_heads * factor, 1, 1), group=(1024, 1, 1))
    run(("sdpa_vector.h",), function, second, constants, **shape)
    assert_near(out, attention(q, k, v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.half, torch.bfloat16])
@pytest.mark.parametrize("queries, causal", [(64, False), (45, True)])
def test_steel_attention(dtype, queries, causal):
    heads, kv_heads, head_dim, rows, columns = 2, 1, 64, 32, 32
    q, k, v = (torch.randn(1, h, queries, head_dim).to(dtype) for h in (heads, kv_heads, kv_heads))
    out = torch.full_like(q, torch.nan)
    tiles, whole, rest = -(-queries // rows), queries // rows, queries % rows
    params = ints(1, heads, head_dim, queries, queries, heads // kv_heads) + struct.pack("f", head_dim**-0.5)
    params += ints(tiles, tiles, whole, whole, rest, rest, 0)
    params += longs(*(s for t in (q, k, v, out) for s in t.stride()[:3]))
    name = METAL[dtype]
    function = f"attention<{name}, {rows}, {columns}, {head_dim}, {head_dim}, 4, 1, {name}, float>"
    constants = {200: rest == 0, 201: rest == 0, 300: False, 301: causal, 302: False, 303: False}
    shape = dict(groups=(tiles, heads, 1), group=(32, 4, 1), uninitialised=[3])
    header = ("steel/attn/kernels/steel_attention.h",)
    run(header, function, {0: q, 1: k, 2: v, 3: out, 4: params}, constants, **shape)
    assert_near(out, attention(q, k, v, is_causal=causal))


def quantised(*shape: int, bits: int, group: int, dtype: torch.dtype):
    """Packed weights, scales, biases, and what they stand for."""
    q = torch.randint(0, 1 << bits, shape)
    scales, biases = (torch.randn(2, *shape[:-1], shape[-1] // group) / 8).to(dtype).unbind()
    words = q.view(*shape[:-1], -1, 32 // bits) << torch.arange(0, 32, bits)
    packed = words.sum(-1)
    packed = torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)
    spread = [t.double().repeat_interleave(group, -1) for t in (scales, biases)]
    return packed, scales, biases, q * spread[0] + spread[1]


QUANTISED = ("steel/gemm/gemm.h", "quantized_utils.h", "quantized.h")


@pytest.mark.parametrize(
    "function, bits, group, inputs, outputs, dtype",
    [
        ("affine_gather_qmv_fast", 4, 64, 512, 16, torch.float32),
        ("affine_gather_qmv_fast", 8, 32, 1024, 8, torch.half),
        ("affine_gather_qmv", 4, 32, 160, 12, torch.bfloat16),
    ],
)
def test_gather_qmv(function, bits, group, inputs, outputs, dtype):
    experts, rows = 3, 4
    x = torch.randn(rows, inputs).to(dtype)
    w, scales, biases, weights = quantised(experts, outputs, inputs, bits=bits, group=group, dtype=dtype)
    left, right = torch.tensor([[2, 0, 1, 3, 3], [1, 2, 0, 2, 1]], dtype=torch.int32).unbind()
    out = torch.full((5, outputs), torch.nan, dtype=dtype)
    values = [w, scales, biases, x, left, right, out, ints(inputs), ints(outputs)]
    values += [ints(1), ints(rows, 1), longs(inputs, inputs), ints(1), ints(experts, outputs, inputs)]
    values += [longs(t.stride(0)) for t in (w, scales, biases)] + [ints(1), ints(5), longs(1), longs(1)]
    shape = dict(groups=(1, -(-outputs // 8), 5), group=(32, 2, 1), uninitialised=[6])
    run(QUANTISED, f"{function}<{METAL[dtype]}, {group}, {bits}>", dict(enumerate(values)), **shape)
    expected = torch.einsum("pnk,pk->pn", weights[right.long()], x[left.long()].double())
    assert_near(out, expected)


def test_qmm():
    rows, inputs, outputs = 40, 64, 32
    x = torch.randn(rows, inputs)
    w, scales, biases, weights = quantised(outputs, inputs, bits=4, group=32, dtype=torch.float32)
    out = torch.full((rows, outputs), torch.nan)
    values = [w, scales, biases, x, out, ints(inputs), ints(outputs), ints(rows), ints(0)]
    values += [ints(1), longs(0), ints(0), ints(1), longs(0), longs(0), longs(0)]
    shape = dict(groups=(1, 2, 1), group=(32, 2, 2), uninitialised=[4])
    run(QUANTISED, "affine_qmm_t<float, 32, 4, true, false>", dict(enumerate(values)), **shape)
    assert_near(out, x.double() @ weights.T)


@pytest.mark.parametrize("function, size, threads", [("softmax_single_row", 100, 32), ("softmax_looped", 5000, 1024)])
def test_softmax(function, size, threads):
    x = torch.randn(3, size).half()
    out = torch.full_like(x, torch.nan)
    shape = dict(groups=(3, 1, 1), group=(threads, 1, 1), uninitialised=[1])
    run(("softmax.h",), f"{function}<half, float>", {0: x, 1: out, 2: ints(size)}, **shape)
    assert_near(out, x.double().softmax(-1))


def test_gated_delta():
    steps, key_heads, heads, key_dim, value_dim = 5, 1, 2, 64, 8
    q, k = torch.randn(2, 1, steps, key_heads, key_dim).unbind()
    k = torch.nn.functional.normalize(k, dim=-1)
    v, g, beta = torch.randn(1, steps, heads, value_dim), torch.rand(1, steps, heads), torch.rand(1, steps, heads)
    state = torch.randn(1, heads, value_dim, key_dim)
    out, after = torch.full_like(v, torch.nan), torch.full_like(state, torch.nan)
    arguments = dict(enumerate([q, k, v, state, g, beta, out, after, ints(steps)]))
    function = f"gated_delta_seq<float, {key_dim}, {value_dim}, {key_heads}, {heads}, 64>"
    shape = dict(threads=(32, value_dim, heads), group=(32, 4, 1), uninitialised=[6, 7])
    run(("gated_delta_update.h",), function, arguments, {200: False}, **shape)

    s, expected = state.double()[0], torch.empty(steps, heads, value_dim, dtype=torch.double)
    for t in range(steps):
        key, query = k[0, t, 0].double(), q[0, t, 0].double()
        s = s * g[0, t, :, None, None].double()
        delta = (v[0, t].double() - s @ key) * beta[0, t, :, None].double()
        s = s + delta[..., None] * key
        expected[t] = s @ query
    assert_near(out[0], expected)
    assert_near(after[0], s)
