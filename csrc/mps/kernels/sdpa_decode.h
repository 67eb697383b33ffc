// How the lanes of a simdgroup share the rows of keys and values in sdpa_decode.metal.
//
// `lanes` neighbouring lanes (a power of two) share a row. Each holds runs of neighbouring elements, so that a load of
// the simdgroup is contiguous and at most 16 bytes a lane.
#ifndef TMO_MPS_SDPA_DECODE_H
#define TMO_MPS_SDPA_DECODE_H

#include <metal_stdlib>

#include "sdpa_mask.h"

#define TMO_UNROLL _Pragma("clang loop unroll(full)")

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

// A lane's part of a row, as float32; 0 beyond the end. kWhole: the parts make up the row exactly, or
// its size is 0.
template <typename T, int kShare, int kRun, bool kWhole>
inline void load_part(thread float (&to)[kShare], device const T* row, int lane, int lanes, int size) {
  constexpr int kVector = kRun < 4 ? 1 : 4;
  TMO_UNROLL
  for (int i = 0; i < kShare; i += kVector) {
    const int d = place_of<kRun>(i, lane, lanes);
    if (kVector == 4) {
      metal::vec<T, 4> x = metal::vec<T, 4>(T(0.0f));
      if (kWhole ? size != 0 : d < size) x = *reinterpret_cast<device const metal::vec<T, 4>*>(row + d);
      TMO_UNROLL
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

// -- the work of a threadgroup

enum { kSimdgroups = kSdpaDecodeThreads / 32 };

// Lanes 0: any head sizes up to kDk and kDv, any alignment.
template <typename Type, int kDk_, int kDv_, int kLanes_, int kRows_>
struct DecodeShape {
  typedef Type T;
  static constant constexpr int kDk = kDk_, kDv = kDv_, kLanes = kLanes_, kRows = kRows_;
  static constant constexpr int kKeyRun = run_of<T>(kDk, kLanes), kKeyShare = share_of(kDk, kLanes, kKeyRun);
  static constant constexpr int kValueRun = run_of<T>(kDv, kLanes), kValueShare = share_of(kDv, kLanes, kValueRun);
  static constant constexpr bool kWholeKey = kKeyShare * kLanes == kDk, kWholeValue = kValueShare * kLanes == kDv;
};

// What all threads of a group know, and the place of this one.
struct DecodePlace {
  int batch, kv_head, rows;
  int begin, end;       // this split's keys
  int lane, lanes;      // this one of those that share a key
  int stream, streams;  // its key of those that a simdgroup has at a time
  bool hides;           // some row sees less than all of the keys
};

// The rows: what of a query and of the sums a lane has.
template <typename S>
struct DecodeRows {
  float q[S::kRows][S::kKeyShare], o[S::kRows][S::kValueShare];
  float reference[S::kRows], sum[S::kRows];  // of this stream's keys
  KeyRange range[S::kRows];
  long mask[S::kRows];
  uint seen;  // a bit a row: whether any key was seen
};

// This split's share of the keys that some row sees: how many are in use is known here only.
template <typename S>
inline DecodePlace place_in(constant SdpaParams& p, device const void* seqused, uint3 group, int lane_index) {
  DecodePlace at;
  at.batch = int(group.z), at.kv_head = int(group.y), at.rows = p.Lq * p.group;
  at.lanes = S::kLanes == 0 ? p.lanes : S::kLanes;
  at.lane = lane_index % at.lanes, at.stream = lane_index / at.lanes, at.streams = 32 / at.lanes;
  const int used = used_keys(p, seqused, at.batch);
  const KeyRange first = keys_of_query(p, used, 0), last = keys_of_query(p, used, p.Lq - 1);
  const int count = last.end - first.begin;
  const int step = kSimdgroups * at.streams;  // a share of whole steps takes no longer, and there are fewer
  const int share = ((count + p.splits - 1) / p.splits + step - 1) / step * step;
  at.begin = first.begin + int(metal::min(long(group.x) * share, long(count)));
  at.end = metal::min(at.begin + share, last.end);
  at.hides = p.has_mask != 0 || last.begin > at.begin || first.end < at.end;
  return at;
}

template <typename S>
inline void load_rows(thread DecodeRows<S>& rows, device const typename S::T* query, device const void* seqused,
                      constant SdpaParams& p, thread const DecodePlace& at) {
  const int used = used_keys(p, seqused, at.batch);
  rows.seen = 0;
  TMO_UNROLL
  for (int r = 0; r < S::kRows; ++r) {
    const Row row = row_of(p, at.kv_head, metal::min(r, at.rows - 1));
    load_part<typename S::T, S::kKeyShare, S::kKeyRun, S::kWholeKey>(
        rows.q[r], query + offset_of(p.query, at.batch, row), at.lane, at.lanes, S::kLanes == 0 ? p.Dk : S::kDk);
    TMO_UNROLL
    for (int i = 0; i < S::kKeyShare; ++i) rows.q[r][i] *= p.scale;
    TMO_UNROLL
    for (int i = 0; i < S::kValueShare; ++i) rows.o[r][i] = 0.0f;
    rows.range[r] = keys_of_query(p, used, row.query);
    rows.mask[r] = mask_row(p, at.batch, row.head, row.query);
    rows.reference[r] = -FLT_MAX;
    rows.sum[r] = 0.0f;
  }
}

// What is added to the score of each row with key j, -inf where it is hidden. Returns whether any row sees the key.
template <typename S>
inline bool fill_bias(thread float (&bias)[S::kRows], thread DecodeRows<S>& rows, device const void* mask,
                      constant SdpaParams& p, thread const DecodePlace& at, int j) {
  const bool inside = j < at.end;
  if (!at.hides) {
    TMO_UNROLL
    for (int r = 0; r < S::kRows; ++r) bias[r] = inside ? 0.0f : -INFINITY;
    rows.seen = inside ? ~0u : rows.seen;
    return inside;
  }
  bool wanted = false;
  TMO_UNROLL
  for (int r = 0; r < S::kRows; ++r) {
    bias[r] = -INFINITY;
    if (r < at.rows && inside && rows.range[r].begin <= j && j < rows.range[r].end) {
      bias[r] = p.has_mask != 0 ? mask_at(p, mask, rows.mask[r] + long(j) * p.mask_key) : 0.0f;
    }
    const bool sees = bias[r] != -INFINITY;
    rows.seen |= sees ? 1u << r : 0u;
    wanted = wanted || sees;
  }
  return wanted;
}

// Moves the reference of each row up to its score where that is larger.
template <typename S>
inline void move_references(thread DecodeRows<S>& rows, thread const float (&score)[S::kRows], int count) {
  TMO_UNROLL
  for (int r = 0; r < S::kRows; ++r) {
    if (r < count) {
      const float now = larger(score[r], rows.reference[r]), factor = weight_of(rows.reference[r] - now);
      rows.reference[r] = now;
      rows.sum[r] *= factor;
      TMO_UNROLL
      for (int i = 0; i < S::kValueShare; ++i) rows.o[r][i] *= factor;
    }
  }
}

// Adds key k with value v to the sums of all rows.
template <typename S>
inline void add_key(thread DecodeRows<S>& rows, thread const float (&k)[S::kKeyShare],
                    thread const float (&v)[S::kValueShare], thread const float (&bias)[S::kRows],
                    constant SdpaParams& p, thread const DecodePlace& at) {
  const float reach = 5.5f;  // how far a score may exceed the reference: weights up to e^5.5 = 245
  float score[S::kRows];
  bool exceeds = false;
  TMO_UNROLL
  for (int r = 0; r < S::kRows; ++r) {
    if (r < at.rows) {
      float product = 0.0f;
      TMO_UNROLL
      for (int i = 0; i < S::kKeyShare; ++i) product = metal::fma(rows.q[r][i], k[i], product);
      score[r] = final_score(p, sum_of_lanes(product, at.lanes), bias[r]);
      exceeds = exceeds || score[r] > rows.reference[r] + reach;
    }
  }
  if (metal::simd_any(exceeds)) move_references<S>(rows, score, at.rows);
  TMO_UNROLL
  for (int r = 0; r < S::kRows; ++r) {
    if (r < at.rows) {
      const float weight = bias[r] == -INFINITY ? 0.0f : weight_of(score[r] - rows.reference[r]);
      rows.sum[r] += weight;
      TMO_UNROLL
      for (int i = 0; i < S::kValueShare; ++i) rows.o[r][i] = metal::fma(weight, v[i], rows.o[r][i]);
    }
  }
}

// One row's sums over the streams of a simdgroup: the values to `part`, the others returned.
template <typename S>
inline float2 gather_streams(thread const DecodeRows<S>& rows, int r, thread const float (&o)[S::kValueShare],
                             float reference, float sum, threadgroup float* part, constant SdpaParams& p,
                             thread const DecodePlace& at) {
  const float own = ((rows.seen >> r) & 1u) != 0 ? reference : -INFINITY;
  const float top = largest_of_rows(own, at.lanes), factor = change_of_reference(own, top);
  TMO_UNROLL
  for (int i = 0; i < S::kValueShare; ++i) {
    const float x = sum_of_rows(o[i] * factor, at.lanes);
    const int d = place_of<S::kValueRun>(i, at.lane, at.lanes);
    if (at.stream == 0 && (S::kWholeValue || d < p.Dv)) part[d] = x;
  }
  return float2(top, sum_of_rows(sum * factor, at.lanes));
}

#endif
