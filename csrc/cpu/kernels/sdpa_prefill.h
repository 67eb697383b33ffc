// Attention of a tile of query rows: two matrix products a tile of keys with the softmax between them.
//   S^T [keys, rows] = K [keys, Dk] Q^T [Dk, rows];   O [rows, Dv] += (P^T)^T [rows, keys] V [keys, Dv]
// Only the queries are transposed, once; keys and values are used in the order in which they lie in memory (converted
// to float32 if need be), and the softmax runs over the keys with a query row in each lane. The running maximum and sum
// are FlashAttention's (Dao et al., 2022).
#pragma once

#include "gemm.h"
#include "sdpa_common.h"
#include "shuffle.h"

namespace tmo::cpu::TMO_ISA {

// The tile under work. Everything with a query row in each lane has rows of `lanes` floats, `ld` apart.
struct PrefillTile {
  int64_t rows, lanes, ld;
  int64_t first_key, keys;
  float *queries, *scores, *bias, *out, *key, *value;
  float maximum[kSdpaTileRows + kSdpaPad], sum[kSdpaTileRows + kSdpaPad], factor[kSdpaTileRows + kSdpaPad];
  int32_t first_seen[kSdpaTileRows + kSdpaPad], end_seen[kSdpaTileRows + kSdpaPad];  // of the keys of the tile
  bool seen[kSdpaTileKeys];                                                          // by any row
};

template <class T>
TMO_INLINE f32v load_upto(const T* from, int64_t count) {
  return count >= kLanes ? load(from) : load_n(from, count);
}

// Q^T, scaled. The lanes beyond the last row are 0.
template <class T>
void pack_queries(const SdpaParams& p, const SdpaItem& item, PrefillTile& t) {
  for (int64_t r = 0; r < t.lanes; r += kLanes) {
    const T* from[kLanes];
    const int64_t count = t.rows - r < kLanes ? t.rows - r : kLanes;
    for (int64_t i = 0; i < count; ++i) {
      from[i] = static_cast<const T*>(p.query) + offset_of_row(p, item, item.row_begin + r + i, p.query_strides);
    }
    for (int64_t d = 0; d < p.Dk; d += kLanes) {
      f32v block[kLanes] = {};
      for (int64_t i = 0; i < count; ++i) block[i] = load_upto(from[i] + d, p.Dk - d) * p.scale;
      transpose(block);
      for (int64_t i = 0; i < kLanes && d + i < p.Dk; ++i) store(t.queries + (d + i) * t.ld + r, block[i]);
    }
  }
}

struct Matrix {
  const float* data;
  int64_t ld;
};

// A tile of keys or values as float32, in rows that are whole vectors. Of float32 it is a copy: that pays, since the
// rows of a tensor are often a power of two apart and then share the places of a cache.
template <class T>
Matrix as_f32(const T* from, int64_t stride, int64_t keys, int64_t size, float* to) {
  const int64_t ld = padded(size) + kSdpaPad;
  for (int64_t j = 0; j < keys; ++j) {
    int64_t d = 0;
    for (; d + kLanes <= size; d += kLanes) store(to + j * ld + d, load(from + j * stride + d));
    if (d < size) store(to + j * ld + d, load_n(from + j * stride + d, size - d));
  }
  return {to, ld};
}

// -- what hides keys

// The bias of one group of lanes from the mask. rows[i] points at the mask of row i and the first key of the tile.
template <class M>
TMO_INLINE void bias_from_mask(const M* const (&rows)[kLanes], int64_t key_stride, int64_t keys, float* bias,
                               int64_t ld) {
  bool same = true;
  for (int i = 1; i < kLanes; ++i) same &= rows[i] == rows[0];
  int64_t j = 0;
  if (same) {
    for (; j < keys; ++j) store(bias + j * ld, splat(mask_at(rows[0] + j * key_stride)));
  } else if (key_stride == 1) {
    for (; j + kLanes <= keys; j += kLanes) {
      f32v block[kLanes];
      for (int i = 0; i < kLanes; ++i) block[i] = load_mask(rows[i] + j);
      transpose(block);
      for (int i = 0; i < kLanes; ++i) store(bias + (j + i) * ld, block[i]);
    }
  }
  for (; j < keys; ++j) {
    for (int i = 0; i < kLanes; ++i) bias[j * ld + i] = mask_at(rows[i] + j * key_stride);
  }
}

// bias [keys, rows]: what is added to each score, -inf where the key is hidden; and which keys are seen at all.
// False if none is.
inline bool fill_bias(const SdpaParams& p, const SdpaItem& item, PrefillTile& t) {
  with_mask(p, [&](const auto* mask) {
    mask += t.first_key * p.mask_key_stride;
    for (int64_t r = 0; r < t.lanes; r += kLanes) {
      std::decay_t<decltype(mask)> rows[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        const int64_t row = r + i < t.rows ? r + i : t.rows - 1;
        rows[i] = mask + offset_of_row(p, item, item.row_begin + row, p.mask_strides);
      }
      bias_from_mask(rows, p.mask_key_stride, t.keys, t.bias + r, t.ld);
    }
  });
  bool any_seen = false;
  for (int64_t j = 0; j < t.keys; ++j) {
    i32v seen = {};
    for (int64_t r = 0; r < t.lanes; r += kLanes) {
      const i32v inside =
          (load_raw<i32v>(t.first_seen + r) <= int32_t(j)) & (load_raw<i32v>(t.end_seen + r) > int32_t(j));
      const f32v from_mask = p.has_mask ? load(t.bias + j * t.ld + r) : f32v{};
      const f32v bias = select(inside, from_mask, splat(-kInfinity));
      store(t.bias + j * t.ld + r, bias);
      seen |= bias != -kInfinity;
    }
    t.seen[j] = any(seen);
    any_seen |= t.seen[j];
  }
  return any_seen;
}

// Where each row's keys begin and end in this tile; whether some row sees less than all of it.
inline bool find_edges(const SdpaParams& p, const SdpaItem& item, PrefillTile& t) {
  bool edges = false;
  const auto within = [&](int64_t key) { return int32_t(key < 0 ? 0 : key > t.keys ? t.keys : key); };
  for (int64_t r = 0; r < t.lanes; ++r) {
    KeyRange keys{0, 0};  // no key for the lanes beyond the last row
    if (r < t.rows) {
      keys = keys_of_row(p, item, item.row_begin + r);
      edges |= keys.begin > t.first_key || keys.end < t.first_key + t.keys;
    }
    t.first_seen[r] = within(keys.begin - t.first_key);
    t.end_seen[r] = within(keys.end - t.first_key);
  }
  return edges;
}

// S^T. Products of long rows are added up in parts, which rounds less.
inline void score(const SdpaParams& p, const Matrix& k, PrefillTile& t) {
  constexpr int64_t kPart = 128;
  const auto size = [&](int64_t d) { return p.Dk - d < kPart ? p.Dk - d : kPart; };
  gemm<false>(t.keys, t.rows, size(0), k.data, k.ld, t.queries, t.ld, t.scores, t.ld);
  for (int64_t d = kPart; d < p.Dk; d += kPart) {
    gemm<true>(t.keys, t.rows, size(d), k.data + d, k.ld, t.queries + d * t.ld, t.ld, t.scores, t.ld);
  }
}

// -- the softmax

// Scores to what the softmax is taken of, for one group of lanes; returns their maximum over the keys.
template <bool kSoftcap, bool kBias>
TMO_INLINE f32v final_scores(const PrefillTile& t, int64_t r, float softcap) {
  f32v maximum = splat(-kInfinity);
  for (int64_t j = 0; j < t.keys; ++j) {
    f32v x = load(t.scores + j * t.ld + r);
    if constexpr (kSoftcap) x = softcap * tanh(x / softcap);
    if constexpr (kBias) {
      const f32v bias = load(t.bias + j * t.ld + r);
      x = select(bias == -kInfinity, bias, x + bias);  // a hidden NaN goes
    }
    if constexpr (kSoftcap || kBias) store(t.scores + j * t.ld + r, x);
    maximum = max(x, maximum);
  }
  return maximum;
}

// Scores to weights relative to the new maximum; factor is what the earlier sums are to be multiplied by.
template <bool kSoftcap, bool kBias>
void softmax_tile(PrefillTile& t, float softcap) {
  for (int64_t r = 0; r < t.lanes; r += kLanes) {
    const f32v before = load(t.maximum + r);
    const f32v now = max(final_scores<kSoftcap, kBias>(t, r, softcap), before);
    const f32v origin = select(now == -kInfinity, f32v{}, now);  // -inf - -inf is no number
    const f32v factor = exp_nonpositive(before - origin);
    f32v sum = load(t.sum + r) * factor;
    for (int64_t j = 0; j < t.keys; ++j) {
      const f32v weight = exp_nonpositive(load(t.scores + j * t.ld + r) - origin);
      store(t.scores + j * t.ld + r, weight);
      sum += weight;
    }
    store(t.maximum + r, now);
    store(t.sum + r, sum);
    store(t.factor + r, factor);
  }
}

inline void softmax_tile(PrefillTile& t, float softcap, bool bias) {
  if (softcap > 0) {
    bias ? softmax_tile<true, true>(t, softcap) : softmax_tile<true, false>(t, softcap);
  } else {
    bias ? softmax_tile<false, true>(t, softcap) : softmax_tile<false, false>(t, softcap);
  }
}

// -- the weighted sum of values

inline void rescale(const SdpaParams& p, PrefillTile& t) {
  const int64_t ld = padded(p.Dv);
  for (int64_t r = 0; r < t.rows; ++r) {
    const float factor = t.factor[r];
    if (factor == 1.0f) continue;
    for (int64_t d = 0; d < p.Dv; d += kLanes) store(t.out + r * ld + d, load(t.out + r * ld + d) * factor);
  }
}

// A key that no row sees is passed over: 0 times its values would be NaN if they are.
template <class T>
void add_values(const SdpaParams& p, const T* value, PrefillTile& t, bool all_seen) {
  const int64_t ld = padded(p.Dv);
  const Matrix v = as_f32(value, p.value_strides.row, t.keys, p.Dv, t.value);
  for (int64_t begin = 0, end; begin < t.keys; begin = end) {
    if (!all_seen && !t.seen[begin]) {
      end = begin + 1;
      continue;
    }
    for (end = begin + 1; end < t.keys && (all_seen || t.seen[end]);) ++end;
    gemm<true, Layout::columns>(t.rows, p.Dv, end - begin, t.scores + begin * t.ld, t.ld, v.data + begin * v.ld, v.ld,
                                t.out, ld);
  }
}

template <class T>
void sdpa_prefill(const SdpaParams& p, const SdpaItem& item, float* scratch) {
  PrefillTile t;
  t.rows = item.row_end - item.row_begin;
  t.lanes = padded(t.rows);
  t.ld = t.lanes + kSdpaPad;
  t.queries = scratch;
  t.scores = t.queries + p.Dk * t.ld;
  t.bias = t.scores + kSdpaTileKeys * t.ld;
  t.out = t.bias + kSdpaTileKeys * t.ld;
  t.key = t.out + t.rows * padded(p.Dv);
  t.value = t.key + kSdpaTileKeys * (padded(p.Dk) + kSdpaPad);
  for (int64_t r = 0; r < t.lanes; ++r) t.maximum[r] = -kInfinity, t.sum[r] = 0.0f;
  for (int64_t i = 0; i < t.rows * padded(p.Dv); ++i) t.out[i] = 0.0f;
  pack_queries<T>(p, item, t);

  const T* key = static_cast<const T*>(p.key) + item.batch * p.key_strides.batch + item.kv_head * p.key_strides.head;
  const T* value =
      static_cast<const T*>(p.value) + item.batch * p.value_strides.batch + item.kv_head * p.value_strides.head;
  const KeyRange range = keys_of_item(p, item);
  for (t.first_key = range.begin; t.first_key < range.end; t.first_key += kSdpaTileKeys) {
    t.keys = range.end - t.first_key < kSdpaTileKeys ? range.end - t.first_key : kSdpaTileKeys;
    const bool edges = find_edges(p, item, t);
    const bool bias = edges || p.has_mask;
    if (bias && !fill_bias(p, item, t)) continue;
    const Matrix k = as_f32(key + t.first_key * p.key_strides.row, p.key_strides.row, t.keys, p.Dk, t.key);
    score(p, k, t);
    softmax_tile(t, p.softcap, bias);
    rescale(p, t);
    add_values(p, value + t.first_key * p.value_strides.row, t, !bias);
  }
  for (int64_t r = 0; r < t.rows; ++r) {
    finish_or_keep<T>(p, item, item.row_begin + r, t.maximum[r], t.sum[r], t.out + r * padded(p.Dv));
  }
}

}  // namespace tmo::cpu::TMO_ISA
