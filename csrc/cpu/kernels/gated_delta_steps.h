// Rows of strided tensors to and from float32 scratch memory, and the steps of gated_delta_rule in it.
#pragma once

#include "gated_delta_rule_params.h"
#include "simd.h"

namespace tmo::cpu::TMO_ISA {

// Calls use(T*) with the data of a tensor as what it is.
template <class Use>
TMO_INLINE void with_data(const Strided& tensor, int64_t offset, Use use) {
  switch (tensor.dtype) {
    case Dtype::f32:
      return use(static_cast<float*>(tensor.data) + offset);
    case Dtype::f16:
      return use(static_cast<c10::Half*>(tensor.data) + offset);
    default:
      return use(static_cast<c10::BFloat16*>(tensor.data) + offset);
  }
}

TMO_INLINE int64_t offset_of(const Strided& tensor, int64_t i, int64_t j, int64_t k, int64_t l) {
  return i * tensor.strides[0] + j * tensor.strides[1] + k * tensor.strides[2] + l * tensor.strides[3];
}

template <class T>
TMO_INLINE void load_elements(const T* from, int64_t stride, int64_t n, float* to) {
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i));
  }
  for (; i < n; i += kLanes) {
    T some[kLanes] = {};
    for (int64_t lane = 0; lane < kLanes && i + lane < n; ++lane) some[lane] = from[(i + lane) * stride];
    store(to + i, load(some));
  }
}

template <class T>
TMO_INLINE void store_elements(T* to, int64_t stride, int64_t n, const float* from) {
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i));
  }
  for (; i < n; i += kLanes) {
    T some[kLanes];
    store(some, load(from + i));
    for (int64_t lane = 0; lane < kLanes && i + lane < n; ++lane) to[(i + lane) * stride] = some[lane];
  }
}

// n elements along the last dimension, from [i, j, k, l] on, as float32; zeros up to whole vectors.
inline void load_row(const Strided& tensor, int64_t i, int64_t j, int64_t k, int64_t l, int64_t n, float* to) {
  with_data(tensor, offset_of(tensor, i, j, k, l),
            [&](const auto* from) { load_elements(from, tensor.strides[3], n, to); });
}

// The reverse; reads whole vectors of scratch memory.
inline void store_row(const Strided& tensor, int64_t i, int64_t j, int64_t k, int64_t l, int64_t n, const float* from) {
  with_data(tensor, offset_of(tensor, i, j, k, l), [&](auto* to) { store_elements(to, tensor.strides[3], n, from); });
}

TMO_INLINE float load_one(const Strided& tensor, int64_t i, int64_t j, int64_t k) {
  float value = 0;
  with_data(tensor, offset_of(tensor, i, j, k, 0), [&](const auto* from) { value = static_cast<float>(*from); });
  return value;
}

// Some steps of one value head, in float32.
struct Steps {
  int64_t count, Dk;
  int64_t key_stride, value_stride;  // floats from one step to the next
  float* q;                          // [count, Dk]
  float* k;                          // [count, Dk]
  float* g;                          // [count, Dk], or one a step: [count, 1] with the same stride
  float* v;                          // [count, rows]
  float* y;                          // [count, rows]
  float* beta;                       // [count]
};

// Places Steps in scratch memory; returns what is left of it.
TMO_INLINE float* place(Steps& steps, float* scratch, int64_t count, int64_t Dk, int64_t rows) {
  const int64_t keys = gated_delta_padded(Dk), values = gated_delta_padded(rows);
  steps.count = count, steps.Dk = Dk, steps.key_stride = keys, steps.value_stride = values;
  steps.q = scratch;
  steps.k = steps.q + count * keys;
  steps.g = steps.k + count * keys;
  steps.v = steps.g + count * keys;
  steps.y = steps.v + count * values;
  steps.beta = steps.y + count * values;
  return steps.beta + gated_delta_padded(count);
}

// Fills them from step t on.
inline void load_steps(const GatedDeltaParams& p, const GatedDeltaRows& rows, int64_t t, Steps& steps) {
  const int64_t b = rows.b, h = rows.h, key_head = h / p.heads_per_key;
  for (int64_t i = 0; i < steps.count; ++i, ++t) {
    load_row(p.q, b, t, key_head, 0, p.Dk, steps.q + i * steps.key_stride);
    load_row(p.k, b, t, key_head, 0, p.Dk, steps.k + i * steps.key_stride);
    load_row(p.g, b, t, h, 0, p.decay_per_channel ? p.Dk : 1, steps.g + i * steps.key_stride);
    load_row(p.v, b, t, h, rows.begin, rows.end - rows.begin, steps.v + i * steps.value_stride);
    steps.beta[i] = load_one(p.beta, b, t, h);
  }
}

inline void store_outputs(const GatedDeltaParams& p, const GatedDeltaRows& rows, int64_t t, const Steps& steps) {
  for (int64_t i = 0; i < steps.count; ++i, ++t) {
    store_row(p.y, rows.b, t, rows.h, rows.begin, rows.end - rows.begin, steps.y + i * steps.value_stride);
  }
}

}  // namespace tmo::cpu::TMO_ISA
