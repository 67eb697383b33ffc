// The work of a threadgroup of sdpa_prefill on its tile of rows, step by step.
//
// In which order the columns of a head take part in a product is free, as long as both factors use the same one. Here a
// run of neighbouring columns belongs to one lane and goes to as many products, one each, so that lanes read runs of
// memory, not single elements. So it is with the columns of the values, whose order is that of O.
#ifndef TMO_MPS_SDPA_PREFILL_TILE_H
#define TMO_MPS_SDPA_PREFILL_TILE_H

#include <metal_stdlib>

#include "sdpa_prefill_matrix.h"

using namespace metal;

template <typename T_, int kDk_, int kDv_, int kRows_, int kSimdgroups_>
struct PrefillShape {
  typedef T_ T;
  static constant constexpr int kDk = kDk_, kDv = kDv_, kRows = kRows_, kSimdgroups = kSimdgroups_;
  static constant constexpr int kBlocks = kRows_ / 8;            // of 8 rows
  static constant constexpr int kKeys = 8 * kSimdgroups_;        // a step
  static constant constexpr int kColumns = kDv_ / kSimdgroups_;  // of the values, a simdgroup
  static constant constexpr int kMatrices = kColumns / 8;
  static constant constexpr int kKeyRun = kDk_ % 32 == 0 ? 4 : 2;
  static constant constexpr int kValueRun = kColumns % 32 == 0 ? 4 : 2;
  static constant constexpr int kPadding = 16 / int(sizeof(T_));  // spreads the rows over the banks of the memory
  static constant constexpr int kQueryStride = kDk_ + kPadding;
  static constant constexpr int kWeightStride = kKeys + 4;
};

struct Row {
  long mask;  // where its mask starts
  int query, head;
  KeyRange keys;  // that it may see, the mask aside
};

// What all threads of a group know of their tile.
template <typename S>
struct PrefillTile {
  threadgroup typename S::T* queries;  // [kRows, kQueryStride]
  threadgroup float* weights;          // [kRows, kWeightStride]
  threadgroup float* maxima;           // [kSimdgroups, kRows]
  threadgroup uint* seen;              // [2, kSimdgroups]: which of its 8 keys, a bit each; for two steps in turn
  threadgroup Row* rows;               // [kRows]
  int batch, key_head;
  long first_row;
  int count, blocks;     // of rows; of blocks of 8 that have any, which alone take part
  KeyRange first, last;  // the keys of the first row and of the last: neither end moves back from row to row
};

// What a lane holds: of its row of each block, and of its columns.
template <typename S>
struct PrefillSums {
  float2 o[S::kBlocks][S::kMatrices];
  float maximum[S::kBlocks];
  float sum[S::kBlocks];  // of its columns of its simdgroup's keys
  uint rows_seen;         // whether the row sees a key, a bit a block
};

// -- the start

inline Row row_at(constant SdpaParams& p, long number, int key_head, int batch, int used) {
  Row row;
  row.query = int(number / p.group);
  row.head = key_head * p.group + int(number % p.group);
  row.mask = mask_row(p, batch, row.head, row.query);
  row.keys = keys_of_query(p, used, row.query);
  return row;
}

// Rows beyond the last repeat it: they neither see nor hide a key of their own.
template <typename S>
inline void find_rows(thread PrefillTile<S>& tile, constant SdpaParams& p, device const void* seqused,
                      int thread_index) {
  const int used = used_keys(p, seqused, tile.batch);
  for (int r = thread_index; r < S::kRows; r += 32 * S::kSimdgroups) {
    tile.rows[r] = row_at(p, tile.first_row + min(r, tile.count - 1), tile.key_head, tile.batch, used);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  tile.first = tile.rows[0].keys;
  tile.last = tile.rows[tile.count - 1].keys;
}

// 0 beyond the last row and the last column. A simdgroup copies a row at a time.
template <typename S>
inline void copy_queries(thread const PrefillTile<S>& tile, device const typename S::T* query, constant SdpaParams& p,
                         int simdgroup, int lane) {
  query += tile.batch * p.query.batch;
  for (int r = simdgroup; r < S::kRows; r += S::kSimdgroups) {
    device const typename S::T* from = query + tile.rows[r].head * p.query.head + tile.rows[r].query * p.query.row;
    const int size = r < tile.count ? p.Dk : 0;
    for (int d = 4 * lane; d < S::kDk; d += 128) {
      float run[4];
      load_run<typename S::T>(run, from, d, size, p.vectors != 0);
      TMO_UNROLL
      for (int i = 0; i < 4; ++i) tile.queries[r * S::kQueryStride + d + i] = typename S::T(run[i]);
    }
  }
}

template <typename S>
inline void clear(thread PrefillSums<S>& sums) {
  sums.rows_seen = 0;
  TMO_UNROLL
  for (int i = 0; i < S::kBlocks; ++i) {
    sums.maximum[i] = -INFINITY;
    sums.sum[i] = 0.0f;
    TMO_UNROLL
    for (int m = 0; m < S::kMatrices; ++m) sums.o[i][m] = float2(0.0f);
  }
}

// -- scores: a simdgroup has all rows of the tile and 8 keys

// What is added to a row's scores of two keys from `key` on. Returns which of them it sees, a bit each.
inline uint row_bias(thread float2& bias, Row row, constant SdpaParams& p, device const void* mask, int key) {
  uint seen = 0;
  TMO_UNROLL
  for (int j = 0; j < 2; ++j) {
    const int k = key + j;
    float value = -INFINITY;
    if (k >= row.keys.begin && k < row.keys.end) {
      value = p.has_mask != 0 ? mask_at(p, mask, row.mask + k * p.mask_key) : 0.0f;
    }
    bias[j] = value;
    seen |= value != -INFINITY ? 1u << j : 0u;
  }
  return seen;
}

// The same of all rows and the 8 keys from `key` on. Returns which of them any row sees, a bit each.
template <typename S>
inline uint fill_bias(thread float2 (&bias)[S::kBlocks], thread PrefillSums<S>& sums, thread const PrefillTile<S>& tile,
                      constant SdpaParams& p, device const void* mask, int key, Place at) {
  uint seen = 0;
  TMO_UNROLL
  for (int i = 0; i < S::kBlocks; ++i) {
    if (i < tile.blocks) {
      const uint row_seen = row_bias(bias[i], tile.rows[8 * i + at.row], p, mask, key + at.column);
      seen |= row_seen;
      sums.rows_seen |= row_seen != 0 ? 1u << i : 0u;
    }
  }
  return simd_or(seen << at.column);
}

// S += Q K^T for `keys` keys from `key` on. Long rows are added up in parts: it rounds less.
template <typename S>
inline void multiply_keys(thread float2 (&s)[S::kBlocks], thread const PrefillTile<S>& tile,
                          device const typename S::T* key, int keys, constant SdpaParams& p, Place at) {
  constexpr int kRun = S::kKeyRun, kPart = 64;
  device const typename S::T* left = key + at.column * p.key.row;
  device const typename S::T* right = left + p.key.row;
  const int left_size = at.column < keys ? p.Dk : 0, right_size = at.column + 1 < keys ? p.Dk : 0;
  threadgroup const typename S::T* queries = tile.queries + at.row * S::kQueryStride + kRun * at.column;
  for (int from = 0; from < S::kDk; from += kPart) {
    float2 part[S::kBlocks];
    TMO_UNROLL
    for (int i = 0; i < S::kBlocks; ++i) part[i] = float2(0.0f);
    for (int d = from; d < min(from + kPart, p.Dk); d += 8 * kRun) {
      float a[kRun], b[kRun];
      load_run<typename S::T>(a, left, d + kRun * at.row, left_size, p.vectors != 0);
      load_run<typename S::T>(b, right, d + kRun * at.row, right_size, p.vectors != 0);
      TMO_UNROLL
      for (int i = 0; i < S::kBlocks; ++i) {
        if (i < tile.blocks) {
          float q[2 * kRun];
          load_run<typename S::T>(q, queries + i * 8 * S::kQueryStride + d);
          TMO_UNROLL
          for (int t = 0; t < kRun; ++t) multiply_add(part[i], float2(q[t], q[kRun + t]), float2(a[t], b[t]));
        }
      }
    }
    TMO_UNROLL
    for (int i = 0; i < S::kBlocks; ++i) s[i] += part[i];
  }
}

// The scores of a step, their maxima of each row, and which keys are seen.
template <typename S>
inline void score(thread float2 (&s)[S::kBlocks], thread PrefillSums<S>& sums, thread const PrefillTile<S>& tile,
                  threadgroup uint* seen, device const typename S::T* key, device const void* mask,
                  constant SdpaParams& p, int first, int end, int simdgroup, Place at) {
  const bool all_seen = p.has_mask == 0 && first >= tile.last.begin && first + 8 <= tile.first.end;
  float2 bias[S::kBlocks];
  TMO_UNROLL
  for (int i = 0; i < S::kBlocks; ++i) s[i] = bias[i] = float2(0.0f);
  uint keys_seen = 0xff;
  if (all_seen) {
    sums.rows_seen = ~0u;
  } else {
    keys_seen = fill_bias<S>(bias, sums, tile, p, mask, first, at);
  }
  if (keys_seen != 0) multiply_keys<S>(s, tile, key + first * p.key.row, end - first, p, at);
  TMO_UNROLL
  for (int i = 0; i < S::kBlocks; ++i) {
    if (i < tile.blocks) {
      s[i] *= p.scale;
      s[i] = float2(final_score(p, s[i].x, bias[i].x), final_score(p, s[i].y, bias[i].y));
      const float m = row_maximum(s[i]);
      if (at.column == 0) tile.maxima[simdgroup * S::kRows + 8 * i + at.row] = m;
    }
  }
  if (at.row == 0 && at.column == 0) seen[simdgroup] = keys_seen;
}

// -- weights

// Scores of a block to weights, for all simdgroups to read; the sums so far now refer to the new maximum.
template <typename S>
inline void weigh_block(float2 s, int i, thread PrefillSums<S>& sums, thread const PrefillTile<S>& tile, int simdgroup,
                        Place at) {
  const int r = 8 * i + at.row;
  float now = sums.maximum[i];
  for (int g = 0; g < S::kSimdgroups; ++g) now = larger(tile.maxima[g * S::kRows + r], now);
  const float origin = now == -INFINITY ? 0.0f : now;  // -inf - -inf is no number
  const float factor = weight_of(sums.maximum[i] - origin);
  const float2 w = float2(weight_of(s.x - origin), weight_of(s.y - origin));
  *reinterpret_cast<threadgroup float2*>(tile.weights + r * S::kWeightStride + 8 * simdgroup + at.column) = w;
  sums.maximum[i] = now;
  sums.sum[i] = sums.sum[i] * factor + (w.x + w.y);
  TMO_UNROLL
  for (int m = 0; m < S::kMatrices; ++m) sums.o[i][m] *= factor;
}

template <typename S>
inline void weigh(thread const float2 (&s)[S::kBlocks], thread PrefillSums<S>& sums, thread const PrefillTile<S>& tile,
                  int simdgroup, Place at) {
  TMO_UNROLL
  for (int i = 0; i < S::kBlocks; ++i) {
    if (i < tile.blocks) weigh_block<S>(s[i], i, sums, tile, simdgroup, at);
  }
}

// -- values: a simdgroup has all rows of the tile and kColumns columns

// What this lane holds of the values of 8 keys: of its row's key, the columns of its simdgroup.
template <typename S>
struct PrefillValues {
  float runs[S::kMatrices / S::kValueRun][2 * S::kValueRun];
};

// `keys_seen`: which of the keys from `first` on. A value that no row sees is taken as 0, not multiplied by 0: it may
// be NaN.
template <typename S>
inline void load_values(thread PrefillValues<S>& v, device const typename S::T* value, uint keys_seen, int first,
                        constant SdpaParams& p, int simdgroup, Place at) {
  constexpr int kRun = S::kValueRun;
  const int size = (keys_seen >> at.row & 1u) != 0 ? p.Dv : 0;
  device const typename S::T* row = value + (first + at.row) * p.value.row;
  TMO_UNROLL
  for (int m = 0; m < S::kMatrices; m += kRun) {
    load_run<typename S::T>(v.runs[m / kRun], row, S::kColumns * simdgroup + 8 * m + kRun * at.column, size,
                            p.vectors != 0);
  }
}

// O += P V for the keys of a simdgroup; `weights` points at this lane's in the first block.
template <typename S>
inline void multiply_values(thread PrefillSums<S>& sums, threadgroup const float* weights,
                            thread const PrefillValues<S>& v, int blocks) {
  constexpr int kRun = S::kValueRun;
  TMO_UNROLL
  for (int i = 0; i < S::kBlocks; ++i) {
    if (i < blocks) {
      const float2 w = *reinterpret_cast<threadgroup const float2*>(weights + 8 * i * S::kWeightStride);
      TMO_UNROLL
      for (int m = 0; m < S::kMatrices; m += kRun) {
        TMO_UNROLL
        for (int t = 0; t < kRun; ++t) {
          multiply_add(sums.o[i][m + t], w, float2(v.runs[m / kRun][t], v.runs[m / kRun][kRun + t]));
        }
      }
    }
  }
}

// The same for all keys of a step. `next` has the values of the first simdgroup's; those of each other one are on their
// way while the one before is multiplied.
template <typename S>
inline void add_values(thread PrefillSums<S>& sums, thread PrefillValues<S>& next, thread const PrefillTile<S>& tile,
                       threadgroup const uint* seen, device const typename S::T* value, constant SdpaParams& p,
                       int step, int simdgroup, Place at) {
  threadgroup const float* weights = tile.weights + at.row * S::kWeightStride + at.column;
  for (int g = 0; g < S::kSimdgroups; ++g) {
    const PrefillValues<S> v = next;
    if (g + 1 < S::kSimdgroups) load_values<S>(next, value, seen[g + 1], step + 8 * (g + 1), p, simdgroup, at);
    if (seen[g] != 0) multiply_values<S>(sums, weights + 8 * g, v, tile.blocks);
  }
}

// -- the end

// The sums of all simdgroups, and whether the row sees a key. Nobody needs maxima and weights any more.
template <typename S>
inline void gather_sums(thread PrefillSums<S>& sums, thread const PrefillTile<S>& tile, int simdgroup, Place at) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint rows_seen = row_or(sums.rows_seen);
  TMO_UNROLL
  for (int i = 0; i < S::kBlocks; ++i) {
    const float own = row_sum(sums.sum[i]);
    if (at.column == 0) {
      tile.maxima[simdgroup * S::kRows + 8 * i + at.row] = own;
      tile.weights[simdgroup * S::kRows + 8 * i + at.row] = float(rows_seen >> i & 1u);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sums.rows_seen = 0;
  TMO_UNROLL
  for (int i = 0; i < S::kBlocks; ++i) {
    sums.sum[i] = 0.0f;
    for (int g = 0; g < S::kSimdgroups; ++g) {
      sums.sum[i] += tile.maxima[g * S::kRows + 8 * i + at.row];
      sums.rows_seen |= tile.weights[g * S::kRows + 8 * i + at.row] != 0.0f ? 1u << i : 0u;
    }
  }
}

// What O is multiplied by, given the maximum of a row's scores and the sum of its weights.
inline float normalizer(constant SdpaParams& p, device const void* sinks, int head, float maximum, float sum) {
  if (p.has_sinks == 0) return 1.0f / sum;
  const float sink = sink_of(p, sinks, head);
  const float top = larger(sink, maximum);
  const float factor = weight_of(maximum - top);
  return factor / (sum * factor + weight_of(sink - top));
}

// A lane's columns of a row of O. `sees`: a row without a key is 0, whatever the values were.
template <typename S, typename To>
inline void store_row(device To* to, thread const float2 (&o)[S::kMatrices], float factor, bool sees, int column,
                      int size, bool vectors, Place at) {
  constexpr int kRun = S::kValueRun;
  TMO_UNROLL
  for (int m = 0; m < S::kMatrices; m += kRun) {
    float run[2 * kRun];
    TMO_UNROLL
    for (int t = 0; t < kRun; ++t) {
      run[t] = sees ? o[m + t].x * factor : 0.0f;
      run[kRun + t] = sees ? o[m + t].y * factor : 0.0f;
    }
    store_run<To>(to, run, column + 8 * m + kRun * at.column, size, vectors);
  }
}

#endif
