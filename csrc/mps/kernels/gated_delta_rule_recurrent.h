// metal::gated_delta_rule, one step after the other: for few steps, where reading and writing the state is the cost.
//   S = g S;  d = beta (v - S k);  S = S + d k^T;  y = S q        (g is the decay itself, already exponentiated)
// Shapes   q, k [B, T, Hk, Dk], v, y [B, T, Hv, Dv], g [B, T, Hv] or [B, T, Hv, Dk], state [B, Hv, Dv, Dk]
// Grid     threadgroups (ceil(Dv / rows), Hv, B) of 4 simdgroups; rows = 128 / kLanes
// Method   A row of the state lives in the registers of kLanes lanes, vectors of 4 channels going round the lanes, so
//          that k and q serve 32 / kLanes rows at once and a sum over channels takes log2(kLanes) shuffles (after MLX's
//          packed gated delta kernel, ml-explore/mlx PR 4409, MIT). Steps come through threadgroup memory, four at a
//          time: read and converted once a threadgroup. The state is read and written once, and rounded once.
// Needs    Dk <= 4 kLanes kVectors; kTail unless equal
#ifndef TMO_MPS_GATED_DELTA_RULE_RECURRENT_H
#define TMO_MPS_GATED_DELTA_RULE_RECURRENT_H

#include <metal_stdlib>

#include "gated_delta_rule_params.h"
#include "gated_delta_rule_steps.h"

// A lane's part of one row of the state.
template <uint kLanes, uint kVectors, bool kTail>
struct RowPart {
  uint first;  // channel; vector i starts at channel first + 4 kLanes i
  uint Dk;
  float4 s[kVectors];

  uint channel(uint i) const { return first + 4 * kLanes * i; }

  // Whether any lane has channels in vector i.
  bool used(uint i) const { return !kTail || 4 * kLanes * i < Dk; }

  // Lanes beyond Dk must keep their zeros: infinity times zero is NaN.
  float4 inside(float4 x, uint i) const {
    if (!kTail) return x;
    const uint c = channel(i);
    return metal::select(float4(0), x, uint4(c, c + 1, c + 2, c + 3) < uint4(Dk));
  }

  template <typename T>
  void load_vectors(device const T* row) {
#pragma clang loop unroll(full)
    for (uint i = 0; i < kVectors; ++i) {
      s[i] = channel(i) < Dk ? float4(*reinterpret_cast<device const metal::vec<T, 4>*>(row + channel(i))) : float4(0);
    }
  }

  template <typename T>
  void store_vectors(device T* row) const {
#pragma clang loop unroll(full)
    for (uint i = 0; i < kVectors; ++i) {
      if (channel(i) < Dk) *reinterpret_cast<device metal::vec<T, 4>*>(row + channel(i)) = metal::vec<T, 4>(s[i]);
    }
  }

  void load(device const void* state, int64_t row, constant GatedDeltaParams& p) {
    if (p.whole_vectors == 0) {
#pragma clang loop unroll(full)
      for (uint i = 0; i < kVectors; ++i) {
#pragma clang loop unroll(full)
        for (uint e = 0; e < 4; ++e) {
          const uint c = channel(i) + e;
          s[i][e] = c < Dk ? load_float(state, row + c * p.state[3], p.state_dtype) : 0.0f;
        }
      }
    } else if (p.state_dtype == kFloat16) {
      load_vectors(static_cast<device const half*>(state) + row);
    } else if (p.state_dtype == kBFloat16) {
      load_vectors(static_cast<device const bfloat*>(state) + row);
    } else {
      load_vectors(static_cast<device const float*>(state) + row);
    }
  }

  void store(device void* state, int64_t row, constant GatedDeltaParams& p) const {
    if (p.whole_vectors == 0) {
#pragma clang loop unroll(full)
      for (uint i = 0; i < kVectors; ++i) {
#pragma clang loop unroll(full)
        for (uint e = 0; e < 4; ++e) {
          const uint c = channel(i) + e;
          if (c < Dk) store_float(state, row + c * p.state[3], p.state_dtype, s[i][e]);
        }
      }
    } else if (p.state_dtype == kFloat16) {
      store_vectors(static_cast<device half*>(state) + row);
    } else if (p.state_dtype == kBFloat16) {
      store_vectors(static_cast<device bfloat*>(state) + row);
    } else {
      store_vectors(static_cast<device float*>(state) + row);
    }
  }

  // g S, and this lane's part of (g S) k. `decay` holds a vector a vector of k, or the one decay of all channels.
  template <bool kPerChannel>
  float decay_and_read(threadgroup const float4* k, threadgroup const float4* decay, float decay_of_all) {
    float4 sum = float4(0);
#pragma clang loop unroll(full)
    for (uint i = 0; i < kVectors; ++i) {
      if (!used(i)) continue;
      float4 g = float4(decay_of_all);
      if (kPerChannel) g = decay[kLanes * i];
      s[i] = inside(s[i] * g, i);
      sum = metal::fma(s[i], k[kLanes * i], sum);
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
  }

  void add(float d, threadgroup const float4* k) {
#pragma clang loop unroll(full)
    for (uint i = 0; i < kVectors; ++i) {
      if (used(i)) s[i] = inside(metal::fma(float4(d), k[kLanes * i], s[i]), i);
    }
  }

  float read(threadgroup const float4* q) const {
    float4 sum = float4(0);
#pragma clang loop unroll(full)
    for (uint i = 0; i < kVectors; ++i) {
      if (used(i)) sum = metal::fma(s[i], q[kLanes * i], sum);
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
  }
};

// The sum over the lanes of a row, in all of them.
template <uint kLanes>
float sum_of_lanes(float x) {
#pragma clang loop unroll(full)
  for (ushort mask = 1; mask < kLanes; mask *= 2) x += metal::simd_shuffle_xor(x, mask);
  return x;
}

template <uint kLanes, uint kVectors, bool kPerChannel, bool kTail>
[[kernel, max_total_threads_per_threadgroup(128)]] void gated_delta_rule_recurrent(
    device const void* q [[buffer(0)]], device const void* k [[buffer(1)]], device const void* v [[buffer(2)]],
    device const void* g [[buffer(3)]], device const void* beta [[buffer(4)]], device void* state [[buffer(5)]],
    device void* y [[buffer(6)]], constant GatedDeltaParams& p [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint kSteps = 4, kThreads = 128;
  constexpr uint kRows = kThreads / kLanes, kWidth = 4 * kLanes * kVectors;
  threadgroup float4 keys[kSteps * kWidth / 4];
  threadgroup float4 queries[kSteps * kWidth / 4];
  threadgroup float4 decays[kPerChannel ? kSteps * kWidth / 4 : 1];  // by channel
  threadgroup float values[kSteps * kRows];
  threadgroup float gates[2 * kSteps];  // beta, then g

  const int64_t b = group.z, h = group.y, key_head = group.y / p.heads_per_key;
  const uint first_row = group.x * kRows, row_in_group = thread_index / kLanes, row = first_row + row_in_group;
  const uint part = lane % kLanes;
  const bool has_rows = first_row + thread_index / 32 * (32 / kLanes) < p.Dv;  // this simdgroup
  const uint padded = (p.Dk + 4 * kLanes - 1) / (4 * kLanes) * (4 * kLanes);   // to what used() lets through

  RowPart<kLanes, kVectors, kTail> mine;
  mine.first = 4 * part;
  mine.Dk = p.Dk;
  const int64_t row_offset = b * p.state[0] + h * p.state[1] + row * p.state[2];
  if (row < p.Dv) {
    mine.load(state, row_offset, p);
  } else {
#pragma clang loop unroll(full)
    for (uint i = 0; i < kVectors; ++i) mine.s[i] = float4(0);
  }

  for (int64_t first = 0; first < p.T; first += kSteps) {
    const uint steps = uint(metal::min(p.T - first, int64_t(kSteps)));
    const Block k_block = {steps, p.Dk, b * p.k[0] + first * p.k[1] + key_head * p.k[2], p.k[1], p.k[3]};
    const Block q_block = {steps, p.Dk, b * p.q[0] + first * p.q[1] + key_head * p.q[2], p.q[1], p.q[3]};
    const Block v_block = {steps, metal::min(p.Dv - first_row, kRows),
                           b * p.v[0] + first * p.v[1] + h * p.v[2] + first_row * p.v[3], p.v[1], p.v[3]};
    copy_block<kSteps, kWidth, kWidth, kThreads>(k, p.dtype, k_block, padded, 0.0f,
                                                 reinterpret_cast<threadgroup float*>(keys), thread_index);
    copy_block<kSteps, kWidth, kWidth, kThreads>(q, p.dtype, q_block, padded, 0.0f,
                                                 reinterpret_cast<threadgroup float*>(queries), thread_index);
    copy_block<kSteps, kRows, kRows, kThreads>(v, p.dtype, v_block, kRows, 0.0f, values, thread_index);
    const int64_t g_offset = b * p.g[0] + first * p.g[1] + h * p.g[2];
    if (kPerChannel) {
      const Block g_block = {steps, p.Dk, g_offset, p.g[1], p.g[3]};
      copy_block<kSteps, kWidth, kWidth, kThreads>(g, p.g_dtype, g_block, padded, 0.0f,
                                                   reinterpret_cast<threadgroup float*>(decays), thread_index);
    }
    if (thread_index < steps) {
      const int64_t t = first + thread_index;
      gates[thread_index] = load_float(beta, b * p.beta[0] + t * p.beta[1] + h * p.beta[2], p.beta_dtype);
      if (!kPerChannel) {
        gates[kSteps + thread_index] = load_float(g, g_offset + thread_index * p.g[1], p.g_dtype);
      }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);

    for (uint t = 0; has_rows && t < steps; ++t) {
      threadgroup const float4* k_t = keys + t * (kWidth / 4) + part;
      threadgroup const float4* q_t = queries + t * (kWidth / 4) + part;
      threadgroup const float4* g_t = decays + (kPerChannel ? t * (kWidth / 4) + part : 0);
      const float decay_of_all = kPerChannel ? 0.0f : gates[kSteps + t];
      const float product = mine.template decay_and_read<kPerChannel>(k_t, g_t, decay_of_all);
      const float d = gates[t] * (values[t * kRows + row_in_group] - sum_of_lanes<kLanes>(product));
      if (d != 0.0f) mine.add(d, k_t);  // adding zero would turn -0 into 0, and padding leaves the state alone
      const float out = sum_of_lanes<kLanes>(mine.read(q_t));
      if (part == 0 && row < p.Dv) {
        store_float(y, b * p.y[0] + (first + t) * p.y[1] + h * p.y[2] + row * p.y[3], p.dtype, out);
      }
    }
    if (first + kSteps < p.T) metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }

  if (row < p.Dv) mine.store(state, row_offset, p);
}

#endif
