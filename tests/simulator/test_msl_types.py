"""Scalars, vectors, conversions and the functions of the Metal library, each against a value worked out by hand."""

import math

import pytest
import torch

from simulator import msl

PREAMBLE = "#include <metal_stdlib>\nusing namespace metal;\n"


def evaluate(statements: str, dtype: torch.dtype = torch.float32, helpers: str = "") -> list:
    """What the statements leave in out[0 .. n)."""
    metal = {
        torch.float32: "float",
        torch.int32: "int",
        torch.int64: "long",
        torch.half: "half",
        torch.bfloat16: "bfloat",
    }
    source = f"{PREAMBLE}{helpers}\nkernel void f(device {metal[dtype]}* out) {{ {statements} }}"
    count = statements.count("out[")
    out = torch.zeros(count, dtype=dtype)
    msl.compile(source + "\n").kernel("f").run({0: out}, threads=(1, 1, 1), group=(1, 1, 1))
    return out.tolist()


def test_swizzles():
    values = evaluate(
        """
        float4 v = float4(1, 2, 3, 4);
        float2 a = v.wy;
        v.xz = float2(10, 30);
        const float4 w = float4(5, 6, 7, 8);
        float4 u = float4(0);
        u.yw = w.yw;
        u.z += v.z;
        u.xy *= 2.0f;
        out[0] = a.x; out[1] = a.y; out[2] = v.x; out[3] = v.y; out[4] = v.z;
        out[5] = u.x; out[6] = u.y; out[7] = u.z; out[8] = u.w;
        out[9] = dot(v.xyz, w.zyx); out[10] = (v.zw + w.xy).y; out[11] = v.rgb[2]; out[12] = v[1];
        """
    )
    assert values == [4, 2, 10, 2, 30, 0, 12, 30, 8, 70 + 12 + 150, 10, 30, 2]


def test_vectors():
    values = evaluate(
        """
        int3 a = int3(7, -7, 9), b = int3(2);
        int4 c = int4(a.xy, int2(1, 2));
        bool3 less = a < b;
        out[0] = (a / b).x; out[1] = (a / b).y; out[2] = (a % b).z; out[3] = (a << 1).x; out[4] = (-a).y;
        out[5] = less.x; out[6] = less.y; out[7] = any(less); out[8] = all(less);
        out[9] = select(a, b, less).y; out[10] = c.w; out[11] = int2(float2(2.9f, -2.9f)).y;
        out[12] = sizeof(float3); out[13] = sizeof(packed_float3); out[14] = alignof(half4); out[15] = sizeof(bool2);
        out[16] = (1 + a).z; out[17] = max(a, b).y; out[18] = ushort2(65535, 1).x + 1;
        """,
        torch.int32,
    )
    assert values == [3, -3, 1, 14, 7, 0, 1, 1, 0, 2, 2, -2, 16, 12, 8, 2, 10, 2, 65536]


def test_packed_vectors_have_no_padding():
    values = evaluate(
        """
        device packed_float3* p = (device packed_float3*)out;
        p[0] = float3(1, 2, 3);
        p[1] = packed_float3(4, 5, 6);
        float3 sum = p[0] + float3(p[1]);
        out[6] = sum.z; out[7] = p[1].x; (void)(out[0] + out[1] + out[2] + out[3] + out[4] + out[5]);
        """
    )
    assert values == [1, 2, 3, 4, 5, 6, 9, 4]


def test_half_rounds_after_every_operation():
    # 2048 + 1 is not a half; 1/3 rounds to 0.333252; 65504 + 32 rounds to infinity.
    values = evaluate(
        "half h = 2048; h += half(1); half t = 1.0h / 3.0h; out[0] = h; out[1] = t; out[2] = half(65504) + half(32);"
        "half2 v = half2(0.1h) * 3; out[3] = v.y;"
    )
    assert values == [2048, 0.333251953125, math.inf, torch.tensor(0.1).half().mul(3).item()]


def test_bfloat_rounds_to_nearest_even_and_widens_to_float():
    values = evaluate(
        """
        bfloat a = bfloat(1.00390625f), b = bfloat(1.01171875f), c = bfloat(3);
        out[0] = a; out[1] = b; out[2] = c / bfloat(7); out[3] = a * 0.5f; out[4] = -c; out[5] = c + 1;
        out[6] = c < bfloat(4.0f); out[7] = float(bfloat(NAN)); out[8] = exp(c); out[9] = as_type<ushort>(c);
        out[10] = sizeof(bfloat4);
        """
    )
    assert math.isnan(values.pop(7))
    # Halfway cases go to the even neighbour: 1 + 1/256 down, 1 + 3/256 up.
    assert values[:6] == [1.0, 1.015625, 0.427734375, 0.5, -3, 4]
    assert values[6:7] + values[8:] == [1, 0x4040, 8]
    assert values[7] == pytest.approx(math.exp(3), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_buffers_of_sixteen_bits(dtype):
    name = {torch.half: "half", torch.bfloat16: "bfloat"}[dtype]
    source = f"""{PREAMBLE}
    kernel void f(device const {name}4* in, device {name}* out, uint i [[thread_position_in_grid]]) {{
      float4 v = float4(in[i]);
      out[i] = {name}(v.x + v.y + v.z + v.w);
    }}"""
    values = torch.randn(32, 4).to(dtype)
    out = torch.empty(32, dtype=dtype)
    msl.compile(source).kernel("f").run({0: values, 1: out}, threads=(32, 1, 1), group=(32, 1, 1))
    v = values.float()
    assert torch.equal(out, (v[:, 0] + v[:, 1] + v[:, 2] + v[:, 3]).to(dtype))


def test_integer_functions():
    values = evaluate(
        """
        out[0] = popcount(0xf0u); out[1] = clz(uint(1)); out[2] = ctz(uint(0)); out[3] = clz(uchar(1));
        out[4] = mulhi(0x80000000u, 4u); out[5] = mulhi(-1, 1); out[6] = reverse_bits(uint(1)) == 0x80000000u;
        out[7] = extract_bits(0x1234u, 4, 8); out[8] = rotate(0x80000001u, 1u); out[9] = abs(-5);
        out[10] = clamp(11, 0, 10); out[11] = min(3u, 2u); out[12] = as_type<int>(1.0f); out[13] = extract_bits(-8, 2, 4);
        out[14] = median3(3, 1, 2); out[15] = select(1, 2, true); out[16] = ulong(mulhi(~0ul, 2ul));
        """,
        torch.int64,
    )
    assert values == [4, 31, 32, 7, 2, -1, 1, 0x23, 3, 5, 10, 2, 0x3F800000, -2, 2, 2, 1]


def test_floating_point_functions():
    values = evaluate(
        """
        float c; float s = sincos(0.5f, c); int e; float m = frexp(12.0f, e);
        out[0] = s * s + c * c; out[1] = m; out[2] = e; out[3] = fract(-0.25f); out[4] = rsqrt(16.0f);
        out[5] = fma(2.0f, 3.0f, 4.0f); out[6] = mix(1.0f, 3.0f, 0.25f); out[7] = step(2.0f, 1.0f); out[8] = sign(-3.0f);
        out[9] = saturate(1.5f); out[10] = rint(2.5f); out[11] = round(2.5f); out[12] = fmod(-7.0f, 4.0f);
        out[13] = copysign(2.0f, -0.0f); out[14] = precise::pow(2.0f, 10.0f); out[15] = fast::exp2(3.0f);
        out[16] = isnan(NAN); out[17] = isinf(-INFINITY); out[18] = max(NAN, 1.0f); out[19] = length(float3(2, 3, 6));
        out[20] = exp(-INFINITY); out[21] = half(sqrt(half(2))); out[22] = numeric_limits<half>::max();
        """
    )
    root = torch.tensor(2.0).half().sqrt().item()
    expected = [1, 0.75, 4, 0.75, 0.25, 10, 1.5, 0, -1, 1, 2, 3, -3, -2, 1024, 8, 1, 1, 1, 7, 0, root, 65504]
    assert values == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "statement, complaint",
    [
        ("out[0] = max(1, 2u);", "ambiguous"),
        ("out[0] = clamp(out[0], -1, 1);", "ambiguous"),
        ("bfloat b = 1.0f; out[0] = b;", "no viable conversion"),
        ("out[0] = simd_sum(1ul);", "no matching function"),
        ("out[0] = simd_shuffle(bfloat(1.0f), 0);", "no matching function"),
        ("float4 v = int4(1); out[0] = v.x;", "no viable conversion"),
        ("out[0] = as_type<float>(ushort(1));", "as_type needs types of one size"),
        ("simdgroup_matrix<int, 8, 8> m; out[0] = 0;", "the element type must be half, bfloat or float"),
        ("out[0] = std::max(1, 2);", "std"),
    ],
)
def test_what_metal_rejects_is_rejected(statement, complaint):
    with pytest.raises(msl.CompileError, match=complaint):
        evaluate(statement)
