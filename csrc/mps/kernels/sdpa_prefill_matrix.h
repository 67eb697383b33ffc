// 8x8 matrices of which a lane holds two neighbours of a row, and the runs of memory that they are made from.
#ifndef TMO_MPS_SDPA_PREFILL_MATRIX_H
#define TMO_MPS_SDPA_PREFILL_MATRIX_H

#include <metal_stdlib>

#include "sdpa_mask.h"

using namespace metal;

#define TMO_UNROLL _Pragma("clang loop unroll(full)")

// -- matrices of 8x8

// Where a lane's two elements (row, column) and (row, column + 1) lie.
struct Place {
  short row, column;
};

inline Place place_of(ushort lane) {
  const short quad = short(lane / 4);
  Place at;
  at.row = short((quad & 4) + (lane / 2) % 4);
  at.column = short((quad & 2) * 2 + (lane % 2) * 2);
  return at;
}

// c += a b
inline void multiply_add(thread float2& c, float2 a, float2 b) {
  simdgroup_float8x8 sum, left, right;
  left.thread_elements()[0] = a.x;
  left.thread_elements()[1] = a.y;
  right.thread_elements()[0] = b.x;
  right.thread_elements()[1] = b.y;
  sum.thread_elements()[0] = c.x;
  sum.thread_elements()[1] = c.y;
  simdgroup_multiply_accumulate(sum, left, right, sum);
  c = float2(sum.thread_elements()[0], sum.thread_elements()[1]);
}

// Over a row, which four lanes hold.
inline float row_maximum(float2 x) {
  float m = larger(x.x, x.y);
  m = larger(m, simd_shuffle_xor(m, ushort(1)));
  return larger(m, simd_shuffle_xor(m, ushort(8)));
}

inline float row_sum(float x) {
  x += simd_shuffle_xor(x, ushort(1));
  return x + simd_shuffle_xor(x, ushort(8));
}

inline uint row_or(uint x) {
  x |= simd_shuffle_xor(x, ushort(1));
  return x | simd_shuffle_xor(x, ushort(8));
}

// -- runs of memory

// The elements d, d + 1, ... of a row that has `size` of them; 0 beyond. `vectors` as in SdpaParams.
template <typename T, int kCount>
inline void load_run(thread float (&to)[kCount], device const T* row, int d, int size, bool vectors) {
  constexpr int kVector = kCount % 4 == 0 ? 4 : 2;
  TMO_UNROLL
  for (int i = 0; i < kCount; i += kVector) {
    vec<T, kVector> v = vec<T, kVector>(T(0.0f));
    if (vectors) {
      if (d + i < size) v = *reinterpret_cast<device const vec<T, kVector>*>(row + d + i);
    } else {
      TMO_UNROLL
      for (int j = 0; j < kVector; ++j) {
        if (d + i + j < size) v[j] = row[d + i + j];
      }
    }
    TMO_UNROLL
    for (int j = 0; j < kVector; ++j) to[i + j] = float(v[j]);
  }
}

template <typename T, int kCount>
inline void load_run(thread float (&to)[kCount], threadgroup const T* from) {
  constexpr int kVector = kCount % 4 == 0 ? 4 : 2;
  TMO_UNROLL
  for (int i = 0; i < kCount; i += kVector) {
    const vec<T, kVector> v = *reinterpret_cast<threadgroup const vec<T, kVector>*>(from + i);
    TMO_UNROLL
    for (int j = 0; j < kVector; ++j) to[i + j] = float(v[j]);
  }
}

template <typename T, int kCount>
inline void store_run(device T* row, thread const float (&from)[kCount], int d, int size, bool vectors) {
  constexpr int kVector = kCount % 4 == 0 ? 4 : 2;
  TMO_UNROLL
  for (int i = 0; i < kCount; i += kVector) {
    vec<T, kVector> v;
    TMO_UNROLL
    for (int j = 0; j < kVector; ++j) v[j] = T(from[i + j]);
    if (vectors) {
      if (d + i < size) *reinterpret_cast<device vec<T, kVector>*>(row + d + i) = v;
    } else {
      TMO_UNROLL
      for (int j = 0; j < kVector; ++j) {
        if (d + i + j < size) row[d + i + j] = v[j];
      }
    }
  }
}

#endif
