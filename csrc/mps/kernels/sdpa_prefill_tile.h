// What a threadgroup of sdpa_prefill works on, and how a simdgroup reads and multiplies its part of it.
//
// A lane holds two neighbours of a row of an 8x8 matrix. In which order the columns of a head take part in a product is
// free, as long as both factors use the same one: here kRun neighbouring columns belong to one lane and go to as many
// products, one each, so that a lane reads runs of memory, not single elements.
#ifndef TMO_MPS_SDPA_PREFILL_TILE_H
#define TMO_MPS_SDPA_PREFILL_TILE_H

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

// -- the rows of a tile

struct Row {
  long mask;  // where its mask starts
  int query, head;
  KeyRange keys;  // that it may see, the mask aside
};

inline Row row_at(constant SdpaParams& p, long number, int key_head, int batch, int used) {
  Row row;
  row.query = int(number / p.group);
  row.head = key_head * p.group + int(number % p.group);
  row.mask = mask_row(p, batch, row.head, row.query);
  row.keys = keys_of_query(p, used, row.query);
  return row;
}

// The queries of a tile, 0 beyond the last row and the last column. A simdgroup copies a row at a time.
template <typename T, int kDk, int kRows, int kStride>
inline void copy_queries(threadgroup T* to, device const T* query, constant SdpaParams& p, threadgroup const Row* rows,
                         int count, int simdgroup, int simdgroups, int lane) {
  for (int r = simdgroup; r < kRows; r += simdgroups) {
    device const T* from = query + rows[r].head * p.query.head + rows[r].query * p.query.row;
    const int size = r < count ? p.Dk : 0;
    for (int d = 4 * lane; d < kDk; d += 128) {
      float run[4];
      load_run<T>(run, from, d, size, p.vectors != 0);
      TMO_UNROLL
      for (int i = 0; i < 4; ++i) to[r * kStride + d + i] = T(run[i]);
    }
  }
}

// -- products. `blocks`: of 8 rows; of the second half of a tile's only when the tile has rows there.

// S += Q K^T: all rows of the tile, `keys` <= 8 keys from `key` on. Long rows are added up in parts: it rounds less.
template <typename T, int kDk, int kBlocks, int kRun, int kStride>
inline void multiply_keys(thread float2 (&s)[kBlocks], threadgroup const T* queries, device const T* key, int keys,
                          constant SdpaParams& p, int blocks, Place at) {
  constexpr int kPart = 128;
  device const T* left = key + at.column * p.key.row;
  device const T* right = left + p.key.row;
  const int left_size = at.column < keys ? p.Dk : 0, right_size = at.column + 1 < keys ? p.Dk : 0;
  queries += at.row * kStride + kRun * at.column;
  for (int from = 0; from < kDk; from += kPart) {
    float2 part[kBlocks];
    TMO_UNROLL
    for (int i = 0; i < kBlocks; ++i) part[i] = float2(0.0f);
    for (int d = from; d < min(from + kPart, p.Dk); d += 8 * kRun) {
      float a[kRun], b[kRun];
      load_run<T>(a, left, d + kRun * at.row, left_size, p.vectors != 0);
      load_run<T>(b, right, d + kRun * at.row, right_size, p.vectors != 0);
      TMO_UNROLL
      for (int i = 0; i < kBlocks; ++i) {
        if (2 * i >= kBlocks && i >= blocks) continue;
        float q[2 * kRun];
        load_run<T>(q, queries + i * 8 * kStride + d);
        TMO_UNROLL
        for (int t = 0; t < kRun; ++t) multiply_add(part[i], float2(q[t], q[kRun + t]), float2(a[t], b[t]));
      }
    }
    TMO_UNROLL
    for (int i = 0; i < kBlocks; ++i) s[i] += part[i];
  }
}

// O += P V: all rows of the tile, the 8 keys of which `row` is this lane's, kParts * kRun * 8 columns from `column` on.
template <typename T, int kBlocks, int kParts, int kRun>
inline void multiply_values(thread float2 (&o)[kBlocks][kParts * kRun], thread const float2 (&weights)[kBlocks],
                            device const T* row, int size, int column, bool vectors, int blocks, Place at) {
  TMO_UNROLL
  for (int part = 0; part < kParts; ++part) {
    float v[2 * kRun];
    load_run<T>(v, row, column + kRun * (8 * part + at.column), size, vectors);
    TMO_UNROLL
    for (int i = 0; i < kBlocks; ++i) {
      if (2 * i >= kBlocks && i >= blocks) continue;
      TMO_UNROLL
      for (int t = 0; t < kRun; ++t) multiply_add(o[i][kRun * part + t], weights[i], float2(v[t], v[kRun + t]));
    }
  }
}

// -- what hides keys

// What is added to the scores of the keys from `key` on. Returns which of the 8 any row sees, a bit each; `rows_seen`
// collects, a bit a block, whether this lane's row sees any.
template <int kBlocks>
inline uint fill_bias(thread float2 (&bias)[kBlocks], thread uint& rows_seen, constant SdpaParams& p,
                      device const void* mask, threadgroup const Row* rows, int key, Place at) {
  uint seen = 0;
  TMO_UNROLL
  for (int i = 0; i < kBlocks; ++i) {
    const Row row = rows[8 * i + at.row];
    uint both = 0;
    TMO_UNROLL
    for (int j = 0; j < 2; ++j) {
      const int k = key + at.column + j;
      float value = -INFINITY;
      if (k >= row.keys.begin && k < row.keys.end) {
        value = p.has_mask != 0 ? mask_at(p, mask, row.mask + k * p.mask_key) : 0.0f;
      }
      bias[i][j] = value;
      both |= value != -INFINITY ? 1u << j : 0u;
    }
    seen |= both;
    rows_seen |= both != 0 ? 1u << i : 0u;
  }
  return simd_or(seen << at.column);
}

// -- the end of a row

// What O is multiplied by, given the maximum of a row's scores and the sum of its weights.
inline float normalizer(constant SdpaParams& p, device const void* sinks, int head, float maximum, float sum) {
  if (p.has_sinks == 0) return 1.0f / sum;
  const float sink = sink_of(p, sinks, head);
  const float top = larger(sink, maximum);
  const float factor = weight_of(maximum - top);
  return factor / (sum * factor + weight_of(sink - top));
}

#endif
