// Apple's compiler's own functions, which its header wraps. MLX calls them to give bfloat the functions that Metal
// leaves out.
#pragma once
#include "simd.h"

#define MSL_BUILTIN_1(name, function)                         \
  template <class T>                                          \
  MSL_FUNCTION T __metal_##name(T x, bool /*fast*/ = false) { \
    return metal::function(x);                                \
  }
#define MSL_BUILTIN_2(name, function)                              \
  template <class T>                                               \
  MSL_FUNCTION T __metal_##name(T x, T y, bool /*fast*/ = false) { \
    return metal::function(x, y);                                  \
  }
#define MSL_BUILTIN_3(name, function)                                   \
  template <class T>                                                    \
  MSL_FUNCTION T __metal_##name(T x, T y, T z, bool /*fast*/ = false) { \
    return metal::function(x, y, z);                                    \
  }
#define MSL_SAME_1(name) MSL_BUILTIN_1(name, name)
#define MSL_SAME_2(name) MSL_BUILTIN_2(name, name)

MSL_SAME_1(acos)
MSL_SAME_1(acosh)
MSL_SAME_1(asin)
MSL_SAME_1(asinh)
MSL_SAME_1(atan)
MSL_SAME_1(atanh)
MSL_SAME_1(ceil)
MSL_SAME_1(cos)
MSL_SAME_1(cosh)
MSL_SAME_1(cospi)
MSL_SAME_1(exp)
MSL_SAME_1(exp10)
MSL_SAME_1(exp2)
MSL_SAME_1(fabs)
MSL_SAME_1(floor)
MSL_SAME_1(fract)
MSL_SAME_1(log)
MSL_SAME_1(log10)
MSL_SAME_1(log2)
MSL_SAME_1(rint)
MSL_SAME_1(round)
MSL_SAME_1(rsqrt)
MSL_SAME_1(sin)
MSL_SAME_1(sinh)
MSL_SAME_1(sinpi)
MSL_SAME_1(sqrt)
MSL_SAME_1(tan)
MSL_SAME_1(tanh)
MSL_SAME_1(tanpi)
MSL_SAME_1(trunc)
MSL_SAME_2(atan2)
MSL_SAME_2(divide)
MSL_SAME_2(fmax)
MSL_SAME_2(fmin)
MSL_SAME_2(fmod)
MSL_SAME_2(nextafter)
MSL_SAME_2(pow)
MSL_SAME_2(powr)
MSL_BUILTIN_3(fma, fma)
MSL_BUILTIN_3(fmax3, max3)
MSL_BUILTIN_3(fmin3, min3)
MSL_BUILTIN_3(fmedian3, median3)
MSL_FUNCTION float __metal_ldexp(float x, int exponent, bool = false) { return metal::ldexp(x, exponent); }
MSL_FUNCTION float __metal_frexp(float x, int* exponent) { return metal::frexp(x, *exponent); }

#define MSL_SIMD(name)                                 \
  template <class T>                                   \
  MSL_FUNCTION T __metal_simd_##name(T x, MSL_PLACE) { \
    return metal::simd_##name(x, file_, line_);        \
  }
#define MSL_SHUFFLE(name)                                        \
  template <class T>                                             \
  MSL_FUNCTION T __metal_simd_##name(T x, ushort n, MSL_PLACE) { \
    return metal::simd_##name(x, n, file_, line_);               \
  }
#define MSL_FILL(name)                                                                     \
  template <class T>                                                                       \
  MSL_FUNCTION T __metal_simd_##name(T x, T fill, ushort n, ushort /*width*/, MSL_PLACE) { \
    return metal::simd_##name(x, fill, n, file_, line_);                                   \
  }
MSL_SIMD(sum)
MSL_SIMD(product)
MSL_SIMD(min)
MSL_SIMD(max)
MSL_SIMD(xor)
MSL_SIMD(prefix_inclusive_sum)
MSL_SIMD(prefix_exclusive_sum)
MSL_SIMD(prefix_inclusive_product)
MSL_SIMD(prefix_exclusive_product)
MSL_SHUFFLE(broadcast)
MSL_SHUFFLE(shuffle)
MSL_SHUFFLE(shuffle_xor)
MSL_SHUFFLE(shuffle_up)
MSL_SHUFFLE(shuffle_down)
MSL_SHUFFLE(shuffle_rotate_up)
MSL_SHUFFLE(shuffle_rotate_down)
MSL_FILL(shuffle_and_fill_up)
MSL_FILL(shuffle_and_fill_down)
MSL_FUNCTION ushort __metal_get_thread_index_in_simdgroup(ushort) { return static_cast<ushort>(msl_lane->index); }
MSL_FUNCTION ushort __metal_get_simdgroup_size(ushort) { return msl::kSimdWidth; }

#undef MSL_BUILTIN_1
#undef MSL_BUILTIN_2
#undef MSL_BUILTIN_3
#undef MSL_SAME_1
#undef MSL_SAME_2
#undef MSL_SIMD
#undef MSL_SHUFFLE
#undef MSL_FILL
