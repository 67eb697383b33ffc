// How the lanes of a simdgroup share the rows of keys and values in sdpa_decode.metal.
//
// `lanes` neighbouring lanes (a power of two) share a row. Each holds runs of neighbouring elements, so that a load of
// the simdgroup is contiguous and at most 16 bytes a lane.
#ifndef TMO_MPS_SDPA_DECODE_H
#define TMO_MPS_SDPA_DECODE_H

#include <metal_stdlib>

#include "sdpa_mask.h"

// The elements in a run. Runs of one element need no alignment.
template <typename T>
constexpr int run_of(int size, int lanes) {
  return lanes == 0 ? 1 : sizeof(T) == 2 && size % (8 * lanes) == 0 ? 8 : 4;
}

// The elements of a row of `size` in a lane. Generic kernels (lanes 0) have up to 32 lanes.
constexpr int share_of(int size, int lanes, int run) {
  return lanes == 0 ? (size + 31) / 32 : (size + lanes * run - 1) / (lanes * run) * run;
}

// Which element of the row is element i of a lane.
template <int kRun>
inline int place_of(int i, int lane, int lanes) {
  return (i / kRun * lanes + lane) * kRun + i % kRun;
}

// A lane's part of a row, as float32; 0 beyond the end. kWhole: the parts make up the row exactly.
template <typename T, int kShare, int kRun, bool kWhole>
inline void load_part(thread float (&to)[kShare], device const T* row, int lane, int lanes, int size) {
  constexpr int kVector = kRun < 4 ? 1 : 4;
#pragma clang loop unroll(full)
  for (int i = 0; i < kShare; i += kVector) {
    const int d = place_of<kRun>(i, lane, lanes);
    if (kVector == 4) {
      metal::vec<T, 4> x = metal::vec<T, 4>(T(0.0f));
      if (kWhole || d < size) x = *reinterpret_cast<device const metal::vec<T, 4>*>(row + d);
#pragma clang loop unroll(full)
      for (int j = 0; j < kVector; ++j) to[i + j] = float(x[j]);
    } else {
      to[i] = 0.0f;
      if (d < size) to[i] = float(row[d]);
    }
  }
}

// Sums over the lanes that share a row.
inline float sum_of_lanes(float x, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) x += metal::simd_shuffle_xor(x, ushort(step));
  return x;
}

// The same over the rows that a simdgroup has under work, and the largest.
inline float sum_of_rows(float x, int lanes) {
  for (int step = lanes; step < 32; step *= 2) x += metal::simd_shuffle_xor(x, ushort(step));
  return x;
}

inline float largest_of_rows(float x, int lanes) {
  for (int step = lanes; step < 32; step *= 2) x = larger(x, metal::simd_shuffle_xor(x, ushort(step)));
  return x;
}

// -- partial results: the reference of the weights (-inf: no key was seen), their sum, and the weighted sum of values

// The factor that refers a sum to `to`, the larger reference.
inline float change_of_reference(float from, float to) { return from == -INFINITY ? 0.0f : weight_of(from - to); }

// An element of the output.
inline float finish(constant SdpaParams& p, float reference, float sum, float weighted, float sink) {
  if (reference == -INFINITY) return 0.0f;
  if (p.has_sinks == 0) return weighted / sum;
  const float top = larger(sink, reference);
  const float factor = weight_of(reference - top);
  return weighted * factor / (sum * factor + weight_of(sink - top));
}

struct Row {
  int query, head;
};

// Row r of a key head: the query heads of a group are neighbours, so that the rows of a tile see much the same keys.
inline Row row_of(constant SdpaParams& p, int kv_head, int r) {
  Row row;
  row.query = r / p.group;
  row.head = kv_head * p.group + r % p.group;
  return row;
}

inline long offset_of(SdpaStrides strides, int batch, Row row) {
  return long(batch) * strides.batch + long(row.head) * strides.head + long(row.query) * strides.row;
}

// The number of a row's first partial result.
inline long partial_of(constant SdpaParams& p, int batch, int kv_head, int r) {
  return ((long(batch) * p.Hkv + kv_head) * p.Lq * p.group + r) * p.splits;
}

#endif
