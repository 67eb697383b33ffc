// Vectors of float32 as the compilers of GCC and Clang know them, with loads and stores of float16 and bfloat16.
//
// Included by csrc/cpu/isa/<isa>.cpp, once an instruction set; TMO_ISA names the namespace, TMO_LANES the width. Kernel
// headers use no standard library function that could be emitted out of line: the linker would keep one copy for all
// instruction sets, perhaps the one that this machine cannot run.
#pragma once

#include "../isa/isa.h"

#define TMO_INLINE inline __attribute__((always_inline))

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are never passed between instruction sets
#endif

namespace tmo::cpu::TMO_ISA {

constexpr int kLanes = TMO_LANES;

using f32v = float __attribute__((vector_size(kLanes * 4)));
using i32v = int32_t __attribute__((vector_size(kLanes * 4)));
using u32v = uint32_t __attribute__((vector_size(kLanes * 4)));
using u16v = uint16_t __attribute__((vector_size(kLanes * 2)));
using u8v = uint8_t __attribute__((vector_size(kLanes)));

template <class To, class From>
TMO_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <class V>
TMO_INLINE V load_raw(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

template <class V>
TMO_INLINE void store_raw(void* to, V v) {
  std::memcpy(to, &v, sizeof(v));
}

TMO_INLINE f32v splat(float x) { return x - f32v{}; }
TMO_INLINE i32v splat_i(int32_t x) { return x - i32v{}; }
// mask lanes are 0 or -1, as a comparison of vectors gives them
TMO_INLINE f32v select(i32v mask, f32v yes, f32v no) {
  return bits_as<f32v>((mask & bits_as<i32v>(yes)) | (~mask & bits_as<i32v>(no)));
}
// b where a is NaN, as the instruction does
TMO_INLINE f32v max(f32v a, f32v b) { return a > b ? a : b; }
TMO_INLINE f32v min(f32v a, f32v b) { return a < b ? a : b; }

// -- conversions

// GCC 12 makes five instructions of __builtin_convertvector where x86 has one.
TMO_INLINE u32v widen(u16v x) {
#if defined(TMO_AVX512)
  return bits_as<u32v>(_mm512_cvtepu16_epi32(bits_as<__m256i>(x)));
#elif defined(TMO_F16C)
  return bits_as<u32v>(_mm256_cvtepu16_epi32(bits_as<__m128i>(x)));
#else
  return __builtin_convertvector(x, u32v);
#endif
}

TMO_INLINE f32v to_f32(u16v bits, c10::BFloat16) { return bits_as<f32v>(widen(bits) << 16); }

TMO_INLINE u16v from_f32(f32v x, c10::BFloat16) {
  const u32v bits = bits_as<u32v>(x);
  const u32v rounded = (bits + (0x7fff + ((bits >> 16) & 1))) >> 16;  // to nearest, ties to even
  const u32v nan = bits_as<u32v>(x != x);
  return __builtin_convertvector((nan & 0x7fc0) | (~nan & rounded), u16v);
}

#if defined(TMO_F16C)
TMO_INLINE f32v to_f32(u16v bits, c10::Half) { return bits_as<f32v>(_mm256_cvtph_ps(bits_as<__m128i>(bits))); }
TMO_INLINE u16v from_f32(f32v x, c10::Half) {
  return bits_as<u16v>(_mm256_cvtps_ph(bits_as<__m256>(x), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(TMO_AVX512)
TMO_INLINE f32v to_f32(u16v bits, c10::Half) { return bits_as<f32v>(_mm512_cvtph_ps(bits_as<__m256i>(bits))); }
TMO_INLINE u16v from_f32(f32v x, c10::Half) {
  return bits_as<u16v>(_mm512_cvtps_ph(bits_as<__m512>(x), _MM_FROUND_TO_NEAREST_INT));
}
#else
TMO_INLINE f32v to_f32(u16v bits, c10::Half) {
  f32v out;
  for (int i = 0; i < kLanes; ++i) out[i] = c10::detail::fp16_ieee_to_fp32_value(bits[i]);
  return out;
}
TMO_INLINE u16v from_f32(f32v x, c10::Half) {
  u16v out;
  for (int i = 0; i < kLanes; ++i) out[i] = c10::detail::fp16_ieee_from_fp32_value(x[i]);
  return out;
}
#endif

// -- memory

TMO_INLINE f32v load(const float* from) { return load_raw<f32v>(from); }
TMO_INLINE void store(float* to, f32v x) { store_raw(to, x); }

template <class T>
TMO_INLINE f32v load(const T* from) {
  return to_f32(load_raw<u16v>(from), T());
}
template <class T>
TMO_INLINE void store(T* to, f32v x) {
  store_raw(to, from_f32(x, T()));
}

// The first count elements; the other lanes are zero.
template <class T>
TMO_INLINE f32v load_n(const T* from, int64_t count) {
  T whole[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) whole[i] = from[i];
  return load(whole);
}
template <class T>
TMO_INLINE void store_n(T* to, f32v x, int64_t count) {
  T whole[kLanes];
  store(whole, x);
  for (int64_t i = 0; i < count; ++i) to[i] = whole[i];
}

// -- across lanes: a fixed tree, so that a sum does not depend on the caller

TMO_INLINE float sum(f32v x) {
  float lanes[kLanes];
  store(lanes, x);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

TMO_INLINE float maximum(f32v x) {
  float lanes[kLanes];
  store(lanes, x);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  }
  return lanes[0];
}

// -- functions

// 2^x to 2 ulp or so. Below -126 it is 0 (no denormals), above 127.99 it is inf; NaN stays NaN.
TMO_INLINE f32v exp2(f32v x) {
  const f32v low = splat(-126.0f), high = splat(128.0f);
  const f32v bounded = max(min(x, high), low);  // NaN goes to high, then to low; put back at the end
  const f32v magic = splat(12582912.0f);        // 1.5 * 2^23: adding it rounds to the nearest integer
  const f32v whole = (bounded + magic) - magic;
  const f32v r = bounded - whole;  // -0.5 to 0.5
  f32v p = splat(1.5403530393e-4f);
  p = p * r + 1.3333558146e-3f;
  p = p * r + 9.6181291076e-3f;
  p = p * r + 5.5504108665e-2f;
  p = p * r + 2.4022650696e-1f;
  p = p * r + 6.9314718056e-1f;
  p = p * r + 1.0f;
  // 2^whole in two factors, since 2^128 alone is no float32
  const i32v n = __builtin_convertvector(whole, i32v);
  const i32v half = n >> 1;
  const f32v scale_a = bits_as<f32v>((half + 127) << 23), scale_b = bits_as<f32v>((n - half + 127) << 23);
  f32v y = p * scale_a * scale_b;
  y = select(x < low, f32v{}, y);
  return select(x != x, x, y);
}

TMO_INLINE f32v exp(f32v x) { return exp2(x * 1.44269504089f); }

}  // namespace tmo::cpu::TMO_ISA
