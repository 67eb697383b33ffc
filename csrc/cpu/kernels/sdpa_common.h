// What decode and prefill share: which keys a row may see, the functions of the softmax, and how a row is finished.
#pragma once

#include "sdpa_params.h"
#include "simd.h"

namespace tmo::cpu::TMO_ISA {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// -- functions

// e^x for x <= 0, exactly 0 from -87.3 down; NaN and +inf give NaN.
TMO_INLINE f32v exp_nonpositive(f32v x) {
  const f32v low = splat(-87.3f), magic = splat(12582912.0f);  // magic: 1.5 * 2^23, rounds to the nearest integer
  const f32v bounded = low > x ? low : x;
  const f32v shifted = bounded * 1.44269504089f + magic;
  const f32v whole = shifted - magic;
  // ln 2 in two parts, so that the first product is exact and no digits are lost for want of an FMA
  const f32v r = (bounded - whole * 0.693359375f) + whole * 2.12194440e-4f;
  f32v y = splat(1.384365350e-03f);
  y = y * r + 8.374155304e-03f;
  y = y * r + 4.166800205e-02f;
  y = y * r + 1.666643126e-01f;
  y = y * r + 4.999999418e-01f;
  y = y * r + 1.000000032e+00f;
  y = y * r + 1.0f;
  const f32v scale = bits_as<f32v>((bits_as<i32v>(shifted) + 127) << 23);
  return select(x < low, f32v{}, y * scale);
}

TMO_INLINE float exp_nonpositive(float x) { return exp_nonpositive(splat(x))[0]; }

TMO_INLINE f32v tanh(f32v x) {
  const f32v size = select(x < 0.0f, -x, x);
  const f32v e = exp_nonpositive(-2.0f * size);
  const f32v far = (1.0f - e) / (1.0f + e);
  const f32v z = x * x;  // 1 - e has no correct digits near 0: an odd polynomial there, relative error 4e-9
  f32v near = splat(-5.70499e-3f);
  near = near * z + 2.063909e-2f;
  near = near * z - 5.373972e-2f;
  near = near * z + 1.3331442e-1f;
  near = near * z - 3.3333282e-1f;
  near = near * (z * x) + x;
  return select(size < 0.625f, near, select(x < 0.0f, -far, far));
}

TMO_INLINE bool any(i32v mask) {
  int64_t parts[kLanes / 2];
  std::memcpy(parts, &mask, sizeof(mask));
  int64_t all = 0;
  for (int i = 0; i < kLanes / 2; ++i) all |= parts[i];
  return all != 0;
}

// -- rows

struct KeyRange {
  int64_t begin, end;
};

// The keys that query i of a batch may see, the mask aside.
TMO_INLINE KeyRange keys_of_query(const SdpaParams& p, int64_t batch, int64_t i) {
  const int64_t used = p.used[batch];
  if (!p.is_causal) return {0, used};
  const int64_t position = (p.lower_right ? used - p.Lq : 0) + i;
  const int64_t end = position < 0 ? 0 : position + 1 < used ? position + 1 : used;
  const int64_t begin = p.window == 0 || position < p.window ? 0 : position - p.window + 1;
  return {begin < end ? begin : end, end};
}

TMO_INLINE KeyRange keys_of_row(const SdpaParams& p, const SdpaItem& item, int64_t row) {
  return keys_of_query(p, item.batch, row / p.group);
}

// The keys of an item that any of its rows may see: windows only move forward from row to row.
TMO_INLINE KeyRange keys_of_item(const SdpaParams& p, const SdpaItem& item) {
  const KeyRange first = keys_of_row(p, item, item.row_begin), last = keys_of_row(p, item, item.row_end - 1);
  const int64_t begin = first.begin > item.key_begin ? first.begin : item.key_begin;
  const int64_t end = last.end < item.key_end ? last.end : item.key_end;
  return {begin, begin < end ? end : begin};
}

TMO_INLINE int64_t head_of_row(const SdpaParams& p, const SdpaItem& item, int64_t row) {
  return item.kv_head * p.group + row % p.group;
}

TMO_INLINE int64_t offset_of_row(const SdpaParams& p, const SdpaItem& item, int64_t row, const SdpaStrides& strides) {
  return item.batch * strides.batch + head_of_row(p, item, row) * strides.head + row / p.group * strides.row;
}

// -- masks: a bool mask is read as one of 0 and -inf

struct BoolMask {
  uint8_t value;
};

template <class M>
TMO_INLINE f32v load_mask(const M* mask) {
  if constexpr (std::is_same_v<M, BoolMask>) {
    const i32v hidden = __builtin_convertvector(load_raw<u8v>(mask), i32v) == 0;
    return select(hidden, splat(-kInfinity), f32v{});
  } else {
    return load(mask);
  }
}

template <class M>
TMO_INLINE float mask_at(const M* mask) {
  if constexpr (std::is_same_v<M, BoolMask>) {
    return mask->value ? 0.0f : -kInfinity;
  } else {
    return static_cast<float>(*mask);
  }
}

// Calls action(typed pointer to the mask).
template <class Action>
TMO_INLINE void with_mask(const SdpaParams& p, const Action& action) {
  if (!p.has_mask) return;
  switch (p.mask_dtype) {
    case Dtype::boolean:
      return action(static_cast<const BoolMask*>(p.mask));
    case Dtype::f32:
      return action(static_cast<const float*>(p.mask));
    case Dtype::f16:
      return action(static_cast<const c10::Half*>(p.mask));
    case Dtype::bf16:
      return action(static_cast<const c10::BFloat16*>(p.mask));
  }
}

inline bool sees_a_key(const SdpaParams& p, const SdpaItem& item, int64_t row) {
  const KeyRange keys = keys_of_row(p, item, row);
  if (!p.has_mask) return keys.begin < keys.end;
  bool sees = false;
  with_mask(p, [&](const auto* mask) {
    mask += offset_of_row(p, item, row, p.mask_strides);
    for (int64_t j = keys.begin; j < keys.end && !sees; ++j) sees = mask_at(mask + j * p.mask_key_stride) != -kInfinity;
  });
  return sees;
}

// -- the end of a row

template <class T>
TMO_INLINE void store_row(const SdpaParams& p, T* to, const float* o, float factor, float divisor) {
  int64_t d = 0;
  for (; d + kLanes <= p.Dv; d += kLanes) store(to + d, load(o + d) * factor / divisor);
  if (d < p.Dv) store_n(to + d, load_n(o + d, p.Dv - d) * factor / divisor, p.Dv - d);
}

// Normalises and stores a row, given the maximum of its scores, the sum of its weights relative to that maximum, and
// the weighted sum of values.
template <class T>
void finish_row(const SdpaParams& p, const SdpaItem& item, int64_t row, float maximum, float sum, const float* o) {
  T* to = static_cast<T*>(p.out) + offset_of_row(p, item, row, p.out_strides);
  // No weight at all: every key is hidden, or every score is -inf, and the softmax of that is NaN.
  if (sum == 0.0f && !sees_a_key(p, item, row)) {
    for (int64_t d = 0; d < p.Dv; ++d) to[d] = T(0.0f);
    return;
  }
  if (p.sinks == nullptr) return store_row(p, to, o, 1.0f, sum);
  const float sink = p.sinks[head_of_row(p, item, row)];
  const float top = sink > maximum ? sink : maximum;
  const float factor = exp_nonpositive(maximum - top);
  store_row(p, to, o, factor, sum * factor + exp_nonpositive(sink - top));
}

template <class T>
TMO_INLINE void finish_or_keep(const SdpaParams& p, const SdpaItem& item, int64_t row, float maximum, float sum,
                               const float* o) {
  if (item.partial == nullptr) return finish_row<T>(p, item, row, maximum, sum, o);
  float* to = item.partial + (row - item.row_begin) * sdpa_partial_row(p);
  to[0] = maximum;
  to[1] = sum;
  for (int64_t d = 0; d < p.Dv; ++d) to[2 + d] = o[d];
}

// Adds up the partial results of `chunks` items that differ in their keys only, in the order of the keys. The partial
// results of the first are at item.partial, those of the next `chunk_stride` floats further.
template <class T>
void sdpa_merge(const SdpaParams& p, const SdpaItem& item, int64_t chunks, int64_t chunk_stride, float* o) {
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    const float* first = item.partial + (row - item.row_begin) * sdpa_partial_row(p);
    float maximum = -kInfinity, sum = 0.0f;
    for (int64_t c = 0; c < chunks; ++c) {
      const float other = first[c * chunk_stride];
      maximum = other > maximum ? other : maximum;
    }
    for (int64_t d = 0; d < p.Dv; ++d) o[d] = 0.0f;
    for (int64_t c = 0; c < chunks; ++c) {
      const float* part = first + c * chunk_stride;
      if (part[1] == 0.0f) continue;
      const float factor = exp_nonpositive(part[0] - (maximum == -kInfinity ? 0.0f : maximum));
      // A NaN score leaves no mark on the maximum, but on the sum.
      sum += part[1] * factor;
      for (int64_t d = 0; d < p.Dv; ++d) o[d] += part[2 + d] * factor;
    }
    finish_row<T>(p, item, row, maximum, sum, o);
  }
}

}  // namespace tmo::cpu::TMO_ISA
