// metal::gated_delta_rule, one step after the other: for few steps, where reading and writing the state is the cost.
//   S = g S;  d = beta (v - S k);  S = S + d k^T;  y = S q
// Method   vectors along Dk, four rows of the state at once; each row is read twice a step, the second time from the
//          first-level cache. A single step works on the state's own memory, more of them on four rows in scratch.
#pragma once

#include "gated_delta_steps.h"

namespace tmo::cpu::TMO_ISA {

// One step of rows of the state, in place.
template <int kRows, bool kPerChannel, class T>
struct RowStep {
  const float *q, *k, *g;
  T* state;
  int64_t stride;
  f32v product[kRows], d[kRows], y[kRows];

  // Lanes from Dk on, where the pad of q, k and state is zero, must stay so: inf times zero is NaN.
  template <bool kPart>
  TMO_INLINE f32v decay(int64_t c, i32v inside) const {
    const f32v all = kPerChannel ? load(g + c) : splat(*g);
    return kPart ? select(inside, all, f32v{}) : all;
  }

  template <bool kPart>
  TMO_INLINE void read(int64_t c, i32v inside) {
    const f32v k_c = load(k + c), g_c = decay<kPart>(c, inside);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) product[r] += g_c * load(state + r * stride + c) * k_c;
  }

  // S + d k equals S where d k is a zero of either sign; then S is kept, so that a step with beta = 0 and g = 1 leaves
  // -0 alone, too.
  template <bool kPart>
  TMO_INLINE void update(int64_t c, i32v inside) {
    const f32v k_c = load(k + c), q_c = load(q + c), g_c = decay<kPart>(c, inside);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      T* const at = state + r * stride + c;
      const f32v decayed = g_c * load(at), updated = decayed + d[r] * k_c;
      f32v s = select(updated == decayed, decayed, updated);
      if (kPart) s = select(inside, s, f32v{});
      store(at, s);
      y[r] += s * q_c;
    }
  }
};

TMO_INLINE i32v lanes_below(int64_t count) {
  i32v lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane < splat_i(static_cast<int32_t>(count));
}

template <int kRows, bool kPerChannel, class T>
TMO_INLINE void step_rows(const Steps& steps, int64_t t, int64_t row, T* state, int64_t stride) {
  const int64_t key = t * steps.key_stride, value = t * steps.value_stride + row;
  RowStep<kRows, kPerChannel, T> step{steps.q + key, steps.k + key, steps.g + key, state, stride, {}, {}, {}};
  const int64_t whole = steps.Dk / kLanes * kLanes;
  const i32v inside = lanes_below(steps.Dk - whole);
  for (int64_t c = 0; c < whole; c += kLanes) step.template read<false>(c, inside);
  if (whole < steps.Dk) step.template read<true>(whole, inside);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) step.d[r] = splat(steps.beta[t] * (steps.v[value + r] - sum(step.product[r])));
  for (int64_t c = 0; c < whole; c += kLanes) step.template update<false>(c, inside);
  if (whole < steps.Dk) step.template update<true>(whole, inside);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) steps.y[value + r] = sum(step.y[r]);
}

template <int kRows, class T>
TMO_INLINE void all_steps(const GatedDeltaParams& p, const Steps& steps, int64_t row, T* state, int64_t stride) {
  for (int64_t t = 0; t < steps.count; ++t) {
    if (p.decay_per_channel) {
      step_rows<kRows, true>(steps, t, row, state, stride);
    } else {
      step_rows<kRows, false>(steps, t, row, state, stride);
    }
  }
}

// All steps of kRows rows of the state, `row` of them counted from rows.begin.
template <int kRows>
inline void recur(const GatedDeltaParams& p, const GatedDeltaRows& rows, const Steps& steps, int64_t row,
                  float* scratch) {
  const Strided& state = p.state;
  const int64_t first = rows.begin + row, stride = steps.key_stride;
  if (steps.count == 1 && state.strides[3] == 1 && p.Dk % kLanes == 0) {
    with_data(state, offset_of(state, rows.b, rows.h, first, 0),
              [&](auto* data) { all_steps<kRows>(p, steps, row, data, state.strides[2]); });
    return;
  }
  for (int r = 0; r < kRows; ++r) load_row(state, rows.b, rows.h, first + r, 0, p.Dk, scratch + r * stride);
  all_steps<kRows>(p, steps, row, scratch, stride);
  for (int r = 0; r < kRows; ++r) store_row(state, rows.b, rows.h, first + r, 0, p.Dk, scratch + r * stride);
}

inline void gated_delta_recurrent(const GatedDeltaParams& p, const GatedDeltaRows& rows, float* scratch) {
  Steps steps;
  float* const some_rows = place(steps, scratch, p.T, p.Dk, rows.end - rows.begin);
  load_steps(p, rows, 0, steps);
  int64_t row = 0;
  for (; row + kGatedDeltaRowsAtOnce <= rows.end - rows.begin; row += kGatedDeltaRowsAtOnce) {
    recur<kGatedDeltaRowsAtOnce>(p, rows, steps, row, some_rows);
  }
  for (; row < rows.end - rows.begin; ++row) recur<1>(p, rows, steps, row, some_rows);
  store_outputs(p, rows, 0, steps);
}

}  // namespace tmo::cpu::TMO_ISA
