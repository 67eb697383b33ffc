// Attention of a few query rows (the heads of a group, a token or a few): bound by the reading of keys and values.
// Each key and each value is loaded, and converted, once for kRows rows at a time. Blocks of keys keep the scores in
// the first-level cache; only the keys of a block that some row may see are read.
#pragma once

#include "sdpa_common.h"
#include "shuffle.h"

namespace tmo::cpu::TMO_ISA {

constexpr int64_t kPrefetchKeys = 16;  // how far ahead keys are fetched

struct DecodeBlock {
  int64_t rows, last;                                        // last: the last key of the item
  int64_t count;                                             // the keys of the block that are seen
  int64_t key[kSdpaDecodeKeys];                              // which they are
  float score[kSdpaDecodeRows][kSdpaDecodeKeys + kSdpaPad];  // then weight
  float bias[kSdpaDecodeRows][kSdpaDecodeKeys + kSdpaPad];
  float maximum[kSdpaDecodeRows], sum[kSdpaDecodeRows];
};

template <class M>
TMO_INLINE void list_seen(const SdpaParams& p, const SdpaItem& item, KeyRange keys, const M* mask, DecodeBlock& b) {
  KeyRange seen[kSdpaDecodeRows];
  const M* row_mask[kSdpaDecodeRows];
  for (int64_t r = 0; r < b.rows; ++r) {
    seen[r] = keys_of_row(p, item, item.row_begin + r);
    row_mask[r] = mask == nullptr ? mask : mask + offset_of_row(p, item, item.row_begin + r, p.mask_strides);
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    bool any_seen = false;
    for (int64_t r = 0; r < b.rows; ++r) {
      const bool inside = seen[r].begin <= j && j < seen[r].end;
      const float of_mask = mask == nullptr ? 0.0f : mask_at(row_mask[r] + j * p.mask_key_stride);
      b.bias[r][b.count] = inside ? of_mask : -kInfinity;
      any_seen |= b.bias[r][b.count] != -kInfinity;
    }
    b.key[b.count] = j;
    b.count += any_seen;
  }
}

// Lists the keys of [begin, end) that some row sees, with their biases. False if there are no biases: all see all.
inline bool list_keys(const SdpaParams& p, const SdpaItem& item, KeyRange keys, DecodeBlock& b) {
  const KeyRange first = keys_of_row(p, item, item.row_begin), last = keys_of_row(p, item, item.row_end - 1);
  b.count = 0;
  if (!p.has_mask) {
    if (last.begin > keys.begin || first.end < keys.end) {
      list_seen<float>(p, item, keys, nullptr, b);
      return true;
    }
    for (int64_t j = keys.begin; j < keys.end; ++j) b.key[b.count++] = j;
    return false;
  }
  with_mask(p, [&](const auto* mask) { list_seen(p, item, keys, mask, b); });
  return true;
}

// The values of these keys are wanted in columns soon; fetched in rows they come at the speed of memory.
template <class T>
TMO_INLINE void prefetch_row(const T* row, int64_t size) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t d = 0; d < size; d += kLine) __builtin_prefetch(row + d);
}

// Scaled products of kRows queries with the listed keys, a few keys at a time: as many sums as have registers.
template <class T, int kRows>
void decode_scores(const SdpaParams& p, const T* key, const T* value, const float* query, int64_t ldq, DecodeBlock& b,
                   int64_t row) {
  constexpr int kSums = kLanes < 8 ? 8 : kLanes, kKeys = kSums / kRows;
  const int64_t whole = p.Dk / kLanes * kLanes;
  for (int64_t c = 0; c < b.count; c += kKeys) {
    const T* k[kKeys];
    f32v sums[kSums] = {};
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) {
      const int64_t listed = c + i < b.count ? c + i : b.count - 1;  // beyond the end: the last one again
      k[i] = key + b.key[listed] * p.key_strides.row;
      if (row == 0) {
        const int64_t ahead = b.key[listed] + kPrefetchKeys;
        prefetch_row(key + (ahead < b.last ? ahead : b.last) * p.key_strides.row, p.Dk);
        prefetch_row(value + b.key[listed] * p.value_strides.row, p.Dv);
      }
    }
    const auto add = [&](int64_t d, const auto& load_key) __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (int i = 0; i < kKeys; ++i) {
        const f32v x = load_key(k[i] + d);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[i * kRows + r] += x * load(query + r * ldq + d);
      }
    };
    for (int64_t d = 0; d < whole; d += kLanes) add(d, [](const T* from) { return load(from); });
    if (whole < p.Dk) add(whole, [&](const T* from) { return load_n(from, p.Dk - whole); });
    float flat[kSums];
#pragma GCC unroll 2
    for (int i = 0; i < kSums; i += kLanes) {
      f32v part[kLanes];
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) part[j] = sums[i + j];
      store(flat + i, sum_each(part));
    }
    for (int i = 0; i < kKeys; ++i) {
      for (int r = 0; r < kRows; ++r) b.score[row + r][c + i] = flat[i * kRows + r];
    }
  }
}

// Scores of one row to weights; returns what the row's earlier sums are to be multiplied by.
inline float softmax_row(DecodeBlock& b, int64_t row, bool bias, float softcap) {
  float* score = b.score[row];
  for (int64_t c = b.count; c < padded(b.count); ++c) score[c] = -kInfinity, b.bias[row][c] = -kInfinity;
  f32v top = splat(-kInfinity);
  for (int64_t c = 0; c < b.count; c += kLanes) {
    f32v x = load(score + c);
    if (softcap > 0) x = softcap * tanh(x / softcap);
    if (bias) {
      const f32v y = load(b.bias[row] + c);
      x = select(y == -kInfinity, y, x + y);  // a hidden NaN goes
    }
    store(score + c, x);
    top = max(x, top);
  }
  for (int64_t c = b.count; c < padded(b.count); ++c) score[c] = -kInfinity;  // softcap has changed it
  const float before = b.maximum[row], here = maximum(top), now = here > before ? here : before;
  const float origin = now == -kInfinity ? 0.0f : now;
  f32v sums = {};
  for (int64_t c = 0; c < b.count; c += kLanes) {
    const f32v weight = exp_nonpositive(load(score + c) - origin);
    store(score + c, weight);
    sums += weight;
  }
  const float factor = before == now ? 1.0f : exp_nonpositive(before - origin);
  b.sum[row] = b.sum[row] * factor + sum(sums);
  b.maximum[row] = now;
  return factor;
}

template <class T, int kRows, int kVectors, class Load>
TMO_INLINE void add_columns(const SdpaParams& p, const T* value, const DecodeBlock& b, int64_t row, float* out,
                            int64_t ldo, const Load& load_value) {
  f32v acc[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) acc[r][i] = load(out + r * ldo + i * kLanes);
  }
  for (int64_t c = 0; c < b.count; ++c) {
    const T* v = value + b.key[c] * p.value_strides.row;
    f32v x[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) x[i] = load_value(v + i * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const f32v weight = splat(b.score[row + r][c]);
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) acc[r][i] += weight * x[i];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) store(out + r * ldo + i * kLanes, acc[r][i]);
  }
}

template <class T, int kRows>
void decode_values(const SdpaParams& p, const T* value, const DecodeBlock& b, int64_t row, float* out, int64_t ldo) {
  constexpr int kVectors = 8 / kRows;
  const auto load_whole = [](const T* from) { return load(from); };
  int64_t d = 0;
  for (; d + kVectors * kLanes <= p.Dv; d += kVectors * kLanes) {
    add_columns<T, kRows, kVectors>(p, value + d, b, row, out + d, ldo, load_whole);
  }
  for (; d + kLanes <= p.Dv; d += kLanes) add_columns<T, kRows, 1>(p, value + d, b, row, out + d, ldo, load_whole);
  if (d < p.Dv) {
    const auto load_rest = [&](const T* from) { return load_n(from, p.Dv - d); };
    add_columns<T, kRows, 1>(p, value + d, b, row, out + d, ldo, load_rest);
  }
}

// Calls action(row, integral constant) for the rows, four at a time.
template <class Action>
TMO_INLINE void each_four_rows(int64_t rows, const Action& action) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) action(r, std::integral_constant<int, 4>());
  if (rows - r == 3) action(r, std::integral_constant<int, 3>());
  if (rows - r == 2) action(r, std::integral_constant<int, 2>());
  if (rows - r == 1) action(r, std::integral_constant<int, 1>());
}

template <class T>
void load_queries(const SdpaParams& p, const SdpaItem& item, int64_t rows, float* query, int64_t ldq) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = static_cast<const T*>(p.query) + offset_of_row(p, item, item.row_begin + r, p.query_strides);
    int64_t d = 0;
    for (; d + kLanes <= p.Dk; d += kLanes) store(query + r * ldq + d, load(from + d) * p.scale);
    if (d < p.Dk) store(query + r * ldq + d, load_n(from + d, p.Dk - d) * p.scale);
  }
}

template <class T>
void sdpa_decode(const SdpaParams& p, const SdpaItem& item, float* scratch) {
  const int64_t ldq = padded(p.Dk), ldo = padded(p.Dv);
  float *query = scratch, *out = scratch + kSdpaDecodeRows * ldq;
  DecodeBlock b;
  b.rows = item.row_end - item.row_begin;
  for (int64_t r = 0; r < b.rows; ++r) b.maximum[r] = -kInfinity, b.sum[r] = 0.0f;
  for (int64_t i = 0; i < b.rows * ldo; ++i) out[i] = 0.0f;
  load_queries<T>(p, item, b.rows, query, ldq);

  const T* key = static_cast<const T*>(p.key) + item.batch * p.key_strides.batch + item.kv_head * p.key_strides.head;
  const T* value =
      static_cast<const T*>(p.value) + item.batch * p.value_strides.batch + item.kv_head * p.value_strides.head;
  const KeyRange range = keys_of_item(p, item);
  b.last = range.end - 1;
  for (int64_t j = range.begin; j < range.end; j += kSdpaDecodeKeys) {
    const bool bias = list_keys(p, item, {j, j + kSdpaDecodeKeys < range.end ? j + kSdpaDecodeKeys : range.end}, b);
    if (b.count == 0) continue;
    each_four_rows(b.rows,
                   [&](int64_t r, auto rows) { decode_scores<T, rows()>(p, key, value, query + r * ldq, ldq, b, r); });
    for (int64_t r = 0; r < b.rows; ++r) {
      const float factor = softmax_row(b, r, bias, p.softcap);
      if (factor == 1.0f) continue;
      for (int64_t d = 0; d < p.Dv; d += kLanes) store(out + r * ldo + d, load(out + r * ldo + d) * factor);
    }
    each_four_rows(b.rows, [&](int64_t r, auto rows) { decode_values<T, rows()>(p, value, b, r, out + r * ldo, ldo); });
  }
  for (int64_t r = 0; r < b.rows; ++r) {
    finish_or_keep<T>(p, item, item.row_begin + r, b.maximum[r], b.sum[r], out + r * ldo);
  }
}

}  // namespace tmo::cpu::TMO_ISA
