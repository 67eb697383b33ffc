// <metal_math>, <metal_common>, <metal_integer>, <metal_relational>, <metal_geometric>. As in Metal, every function is
// an overload set closed over its types: no template, so that a call with mixed types is ambiguous here too.
#pragma once
#include "vector.h"

namespace metal {

// M(V, T, ...) for the vectors V of T.
#define MSL_VECTORS(M, T, ...) M(T##2, T, __VA_ARGS__) M(T##3, T, __VA_ARGS__) M(T##4, T, __VA_ARGS__)

#define MSL_MAP_1(V, T, name)                                      \
  MSL_FUNCTION V name(V a) {                                       \
    for (int i = 0; i < V::size; i++) a.data[i] = name(a.data[i]); \
    return a;                                                      \
  }
#define MSL_MAP_2(V, T, name)                                                 \
  MSL_FUNCTION V name(V a, V b) {                                             \
    for (int i = 0; i < V::size; i++) a.data[i] = name(a.data[i], b.data[i]); \
    return a;                                                                 \
  }
#define MSL_MAP_3(V, T, name)                                                            \
  MSL_FUNCTION V name(V a, V b, V c) {                                                   \
    for (int i = 0; i < V::size; i++) a.data[i] = name(a.data[i], b.data[i], c.data[i]); \
    return a;                                                                            \
  }

// A function of floats, evaluated in float and rounded once for half.
#define MSL_UNARY(name, expression)                                                         \
  MSL_FUNCTION float name(float x) { return expression; }                                   \
  MSL_FUNCTION half name(half x) { return static_cast<half>(name(static_cast<float>(x))); } \
  MSL_VECTORS(MSL_MAP_1, float, name)                                                       \
  MSL_VECTORS(MSL_MAP_1, half, name)
#define MSL_BINARY(name, expression)                                              \
  MSL_FUNCTION float name(float x, float y) { return expression; }                \
  MSL_FUNCTION half name(half x, half y) {                                        \
    return static_cast<half>(name(static_cast<float>(x), static_cast<float>(y))); \
  }                                                                               \
  MSL_VECTORS(MSL_MAP_2, float, name)                                             \
  MSL_VECTORS(MSL_MAP_2, half, name)
#define MSL_TERNARY(name, expression)                                                                    \
  MSL_FUNCTION float name(float x, float y, float z) { return expression; }                              \
  MSL_FUNCTION half name(half x, half y, half z) {                                                       \
    return static_cast<half>(name(static_cast<float>(x), static_cast<float>(y), static_cast<float>(z))); \
  }                                                                                                      \
  MSL_VECTORS(MSL_MAP_3, float, name)                                                                    \
  MSL_VECTORS(MSL_MAP_3, half, name)

// The functions that have a fast and a precise version; here all are the precise one.
#define MSL_ELEMENTARY                                                       \
  MSL_UNARY(acos, __builtin_acosf(x))                                        \
  MSL_UNARY(acosh, __builtin_acoshf(x))                                      \
  MSL_UNARY(asin, __builtin_asinf(x))                                        \
  MSL_UNARY(asinh, __builtin_asinhf(x))                                      \
  MSL_UNARY(atan, __builtin_atanf(x))                                        \
  MSL_UNARY(atanh, __builtin_atanhf(x))                                      \
  MSL_UNARY(ceil, __builtin_ceilf(x))                                        \
  MSL_UNARY(cos, __builtin_cosf(x))                                          \
  MSL_UNARY(cosh, __builtin_coshf(x))                                        \
  MSL_UNARY(cospi, __builtin_cosf(M_PI_F* x))                                \
  MSL_UNARY(exp, __builtin_expf(x))                                          \
  MSL_UNARY(exp10, __builtin_powf(10.f, x))                                  \
  MSL_UNARY(exp2, __builtin_exp2f(x))                                        \
  MSL_UNARY(fabs, __builtin_fabsf(x))                                        \
  MSL_UNARY(floor, __builtin_floorf(x))                                      \
  MSL_UNARY(fract, __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f)) \
  MSL_UNARY(log, __builtin_logf(x))                                          \
  MSL_UNARY(log10, __builtin_log10f(x))                                      \
  MSL_UNARY(log2, __builtin_log2f(x))                                        \
  MSL_UNARY(rint, __builtin_rintf(x))                                        \
  MSL_UNARY(round, __builtin_roundf(x))                                      \
  MSL_UNARY(rsqrt, 1.f / __builtin_sqrtf(x))                                 \
  MSL_UNARY(sin, __builtin_sinf(x))                                          \
  MSL_UNARY(sinh, __builtin_sinhf(x))                                        \
  MSL_UNARY(sinpi, __builtin_sinf(M_PI_F* x))                                \
  MSL_UNARY(sqrt, __builtin_sqrtf(x))                                        \
  MSL_UNARY(tan, __builtin_tanf(x))                                          \
  MSL_UNARY(tanh, __builtin_tanhf(x))                                        \
  MSL_UNARY(tanpi, __builtin_tanf(M_PI_F* x))                                \
  MSL_UNARY(trunc, __builtin_truncf(x))                                      \
  MSL_BINARY(atan2, __builtin_atan2f(x, y))                                  \
  MSL_BINARY(copysign, __builtin_copysignf(x, y))                            \
  MSL_BINARY(divide, x / y)                                                  \
  MSL_BINARY(fdim, __builtin_fdimf(x, y))                                    \
  MSL_BINARY(fmax, __builtin_fmaxf(x, y))                                    \
  MSL_BINARY(fmin, __builtin_fminf(x, y))                                    \
  MSL_BINARY(fmod, __builtin_fmodf(x, y))                                    \
  MSL_BINARY(pow, __builtin_powf(x, y))                                      \
  MSL_BINARY(powr, __builtin_powf(x, y))                                     \
  MSL_TERNARY(fma, __builtin_fmaf(x, y, z))                                  \
  MSL_FUNCTION float sincos(float x, float& cosine) {                        \
    cosine = __builtin_cosf(x);                                              \
    return __builtin_sinf(x);                                                \
  }
MSL_ELEMENTARY
namespace fast {
MSL_ELEMENTARY
}
namespace precise {
MSL_ELEMENTARY
}
#undef MSL_ELEMENTARY

MSL_BINARY(nextafter, __builtin_nextafterf(x, y))
MSL_UNARY(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.f), 1.f))
MSL_UNARY(sign, x > 0 ? 1.f : x < 0 ? -1.f : 0.f)
MSL_BINARY(step, y < x ? 0.f : 1.f)
MSL_TERNARY(mix, x + (y - x) * z)
MSL_TERNARY(mad, x* y + z)
MSL_FUNCTION float smoothstep(float low, float high, float x) {
  float t = saturate((x - low) / (high - low));
  return t * t * (3.f - 2.f * t);
}
MSL_FUNCTION float ldexp(float x, int exponent) { return __builtin_ldexpf(x, exponent); }
MSL_FUNCTION float frexp(float x, int& exponent) { return __builtin_frexpf(x, &exponent); }
MSL_FUNCTION float modf(float x, float& whole) { return __builtin_modff(x, &whole); }
MSL_FUNCTION int ilogb(float x) { return __builtin_ilogbf(x); }

#define MSL_MINMAX_INTEGER(T)                                      \
  MSL_FUNCTION constexpr T min(T a, T b) { return b < a ? b : a; } \
  MSL_FUNCTION constexpr T max(T a, T b) { return a < b ? b : a; } \
  MSL_FUNCTION constexpr T abs(T a) { return a < T(0) ? T(-a) : a; }
MSL_INTEGERS(MSL_MINMAX_INTEGER)
#undef MSL_MINMAX_INTEGER
#define MSL_MINMAX_FLOAT(T)                                                                                           \
  MSL_FUNCTION constexpr T min(T a, T b) { return T(__builtin_fminf(static_cast<float>(a), static_cast<float>(b))); } \
  MSL_FUNCTION constexpr T max(T a, T b) { return T(__builtin_fmaxf(static_cast<float>(a), static_cast<float>(b))); } \
  MSL_FUNCTION constexpr T abs(T a) { return T(__builtin_fabsf(static_cast<float>(a))); }
MSL_FLOATS(MSL_MINMAX_FLOAT)
#undef MSL_MINMAX_FLOAT
#define MSL_COMMON(T)                                                                           \
  MSL_FUNCTION constexpr T clamp(T x, T low, T high) { return min(max(x, low), high); }         \
  MSL_FUNCTION constexpr T min3(T a, T b, T c) { return min(a, min(b, c)); }                    \
  MSL_FUNCTION constexpr T max3(T a, T b, T c) { return max(a, max(b, c)); }                    \
  MSL_FUNCTION constexpr T median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); } \
  MSL_VECTORS(MSL_MAP_2, T, min)                                                                \
  MSL_VECTORS(MSL_MAP_2, T, max)                                                                \
  MSL_VECTORS(MSL_MAP_1, T, abs)                                                                \
  MSL_VECTORS(MSL_MAP_3, T, clamp)
MSL_SCALARS(MSL_COMMON)
#undef MSL_COMMON
namespace fast {
using metal::abs, metal::clamp, metal::max, metal::min;
}
namespace precise {
using metal::abs, metal::clamp, metal::max, metal::min;
}

// select(a, b, c) is b where c holds.
#define MSL_SELECT_VECTOR(V, T, _)                        \
  MSL_FUNCTION V select(V a, V b, vec<bool, V::size> c) { \
    for (int i = 0; i < V::size; i++)                     \
      if (c.data[i]) a.data[i] = b.data[i];               \
    return a;                                             \
  }
#define MSL_SELECT(T)                                                     \
  MSL_FUNCTION constexpr T select(T a, T b, bool c) { return c ? b : a; } \
  MSL_VECTORS(MSL_SELECT_VECTOR, T, _)
MSL_SCALARS(MSL_SELECT)
MSL_SELECT(bool)
MSL_SELECT(bfloat)
#undef MSL_SELECT

#define MSL_PREDICATE_VECTOR(V, T, name)                                \
  MSL_FUNCTION vec<bool, V::size> name(V a) {                           \
    vec<bool, V::size> result;                                          \
    for (int i = 0; i < V::size; i++) result.data[i] = name(a.data[i]); \
    return result;                                                      \
  }
#define MSL_PREDICATE(name)                                                                      \
  MSL_FUNCTION constexpr bool name(float x) { return __builtin_##name(x); }                      \
  MSL_FUNCTION constexpr bool name(half x) { return __builtin_##name(static_cast<float>(x)); }   \
  MSL_FUNCTION constexpr bool name(bfloat x) { return __builtin_##name(static_cast<float>(x)); } \
  MSL_VECTORS(MSL_PREDICATE_VECTOR, float, name)                                                 \
  MSL_VECTORS(MSL_PREDICATE_VECTOR, half, name)
MSL_PREDICATE(isnan)
MSL_PREDICATE(isinf)
MSL_PREDICATE(isfinite)
MSL_PREDICATE(isnormal)
MSL_PREDICATE(signbit)
#undef MSL_PREDICATE
#define MSL_UNORDERED(T)                                                             \
  MSL_FUNCTION constexpr bool isunordered(T a, T b) { return isnan(a) || isnan(b); } \
  MSL_FUNCTION constexpr bool isordered(T a, T b) { return !isunordered(a, b); }
MSL_FLOATS(MSL_UNORDERED)
MSL_UNORDERED(bfloat)
#undef MSL_UNORDERED

MSL_FUNCTION constexpr bool any(bool b) { return b; }
MSL_FUNCTION constexpr bool all(bool b) { return b; }
#define MSL_ANY_ALL(V, T, _)          \
  MSL_FUNCTION bool any(V v) {        \
    for (int i = 0; i < V::size; i++) \
      if (v.data[i]) return true;     \
    return false;                     \
  }                                   \
  MSL_FUNCTION bool all(V v) { return !any(!v); }
MSL_VECTORS(MSL_ANY_ALL, bool, _)
#undef MSL_ANY_ALL

#define MSL_INTEGER(T)                                                                                             \
  MSL_FUNCTION constexpr T popcount(T x) { return T(__builtin_popcountl(make_unsigned_t<T>(x))); }                 \
  MSL_FUNCTION constexpr T clz(T x) {                                                                              \
    return T(x ? __builtin_clzl(make_unsigned_t<T>(x)) - (64 - 8 * int(sizeof(T))) : 8 * int(sizeof(T)));          \
  }                                                                                                                \
  MSL_FUNCTION constexpr T ctz(T x) { return T(x ? __builtin_ctzl(make_unsigned_t<T>(x)) : 8 * int(sizeof(T))); }  \
  MSL_FUNCTION constexpr T reverse_bits(T x) {                                                                     \
    make_unsigned_t<T> in = x, out = 0;                                                                            \
    for (uint i = 0; i < sizeof(T) * 8; i++) out = out << 1 | (in >> i & 1);                                       \
    return T(out);                                                                                                 \
  }                                                                                                                \
  MSL_FUNCTION constexpr T rotate(T x, T n) {                                                                      \
    constexpr uint width = sizeof(T) * 8;                                                                          \
    make_unsigned_t<T> u = x;                                                                                      \
    uint by = uint(n) % width;                                                                                     \
    return T(u << by | u >> (width - by) % width);                                                                 \
  }                                                                                                                \
  MSL_FUNCTION constexpr T extract_bits(T x, uint offset, uint bits) {                                             \
    return bits ? T(T(make_unsigned_t<T>(x) << (sizeof(T) * 8 - offset - bits)) >> (sizeof(T) * 8 - bits)) : T(0); \
  }                                                                                                                \
  MSL_VECTORS(MSL_MAP_1, T, popcount)
MSL_INTEGERS(MSL_INTEGER)
#undef MSL_INTEGER
#define MSL_MULHI(T, WIDE)                                                                                             \
  MSL_FUNCTION constexpr T mulhi(T a, T b) { return T(static_cast<WIDE>(a) * static_cast<WIDE>(b) >> sizeof(T) * 8); } \
  MSL_FUNCTION constexpr T madhi(T a, T b, T c) { return T(mulhi(a, b) + c); }
MSL_MULHI(char, int)
MSL_MULHI(uchar, uint)
MSL_MULHI(short, int)
MSL_MULHI(ushort, uint)
MSL_MULHI(int, long)
MSL_MULHI(uint, ulong)
MSL_MULHI(long, __int128)
MSL_MULHI(ulong, unsigned __int128)
#undef MSL_MULHI
#define MSL_INT24(T)                                         \
  MSL_FUNCTION constexpr T mul24(T a, T b) { return a * b; } \
  MSL_FUNCTION constexpr T mad24(T a, T b, T c) { return a * b + c; }
MSL_INT24(int)
MSL_INT24(uint)
#undef MSL_INT24

#define MSL_GEOMETRY(V, T, _)                                       \
  MSL_FUNCTION T dot(V a, V b) {                                    \
    T sum = a.data[0] * b.data[0];                                  \
    for (int i = 1; i < V::size; i++) sum += a.data[i] * b.data[i]; \
    return sum;                                                     \
  }                                                                 \
  MSL_FUNCTION T length_squared(V a) { return dot(a, a); }          \
  MSL_FUNCTION T length(V a) { return sqrt(dot(a, a)); }            \
  MSL_FUNCTION T distance(V a, V b) { return length(a - b); }       \
  MSL_FUNCTION V normalize(V a) { return a * rsqrt(dot(a, a)); }
MSL_VECTORS(MSL_GEOMETRY, float, _)
MSL_VECTORS(MSL_GEOMETRY, half, _)
#undef MSL_GEOMETRY

#undef MSL_UNARY
#undef MSL_BINARY
#undef MSL_TERNARY
}  // namespace metal
