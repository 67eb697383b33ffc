// metal::gated_delta_rule for long T, C = 8 steps at once as products of 8x8 matrices. With S the state before the
// chunk, D(i,j) the product of the decays of steps j+1..i, and D(i) that of steps 1..i, the recurrence unrolls to
//   d_i = beta_i (v_i - S D(i) k_i - sum_{j<i} (k_i . D(i,j) k_j) d_j)
//   y_i = S D(i) q_i + sum_{j<=i} (q_i . D(i,j) k_j) d_j
//   S'  = S D(C) + sum_j d_j (D(C,j) k_j)^T
// d is found by forward substitution. After the UT form of Yang et al. (Parallelizing Linear Transformers with the
// Delta Rule, 2024; Gated Delta Networks, 2024); here the chunks follow each other, so W and U are never formed.
// Shapes   q, k [B, T, Hk, Dk], v, y [B, T, Hv, Dv], g [B, T, Hv] or [B, T, Hv, Dk], state [B, Hv, Dv, Dk]
// Grid     threadgroups (ceil(Dv / 64), Hv, B) of 8 simdgroups, each 8 rows of the state
// Method   A simdgroup holds its rows as S^T in matrices of 8 channels by 8 rows, in registers for the whole call; k
//          and q come through threadgroup memory, and so do their products with each other, which all rows share. A
//          row costs 3 Dk + 2 C multiplications a step; as matrices are 8x8, longer chunks would only add to it.
//          The D are products of decays, never quotients nor differences of logarithms: exact for g = 0 and g = 1.
// NaN, inf The sums above mix steps, so a simdgroup that meets something that is not finite does the chunk again step
//          by step.
// Needs    Dk <= 8 kTiles, T > 0
#ifndef TMO_MPS_GATED_DELTA_RULE_CHUNKED_H
#define TMO_MPS_GATED_DELTA_RULE_CHUNKED_H

#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "gated_delta_rule_params.h"
#include "gated_delta_rule_steps.h"

static constant constexpr uint kChunk = 8;  // steps, and the side of a matrix
static constant constexpr uint kSlice = 8;  // matrices that are summed up before their sum joins the others'

// A lane's two elements of a matrix: [row, column] and [row, column + 1].
inline thread float2& elements(thread metal::simdgroup_float8x8& m) {
  return reinterpret_cast<thread float2&>(m.thread_elements());
}

inline uint row_of_lane(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
inline uint column_of_lane(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

// The sum of what the lanes with the same columns hold.
inline float2 sum_of_rows(float2 x) {
  x += metal::simd_shuffle_xor(x, ushort(2));
  x += metal::simd_shuffle_xor(x, ushort(4));
  return x + metal::simd_shuffle_xor(x, ushort(16));
}

// The tensors at the first element of one batch and head, so that only the step is left to find.
struct Head {
  device const void* q;
  device const void* k;
  device const void* v;
  device const void* g;
  device const void* beta;
  device void* y;
  int64_t q_offset, k_offset, v_offset, g_offset, beta_offset, y_offset;
};

// 8 rows of the state of one head, of which this lane holds two: 8x8 matrices of channels by rows.
template <uint kTiles, bool kPerChannel>
struct Rows {
  uint lane, lane_row;
  uint first;  // row, of this lane's two
  metal::simdgroup_float8x8 s[kTiles];

  uint channel(uint tile) const { return kChunk * tile + lane_row; }

  void load(device const void* state, int64_t offset, constant GatedDeltaParams& p) {
#pragma clang loop unroll(full)
    for (uint tile = 0; tile < kTiles; ++tile) {
#pragma clang loop unroll(full)
      for (uint e = 0; e < 2; ++e) {
        const bool inside = channel(tile) < p.Dk && first + e < p.Dv;
        const int64_t index = offset + (first + e) * p.state[2] + channel(tile) * p.state[3];
        elements(s[tile])[e] = inside ? load_float(state, index, p.state_dtype) : 0.0f;
      }
    }
  }

  void store(device void* state, int64_t offset, constant GatedDeltaParams& p) {
#pragma clang loop unroll(full)
    for (uint tile = 0; tile < kTiles; ++tile) {
#pragma clang loop unroll(full)
      for (uint e = 0; e < 2; ++e) {
        const int64_t index = offset + (first + e) * p.state[2] + channel(tile) * p.state[3];
        if (channel(tile) < p.Dk && first + e < p.Dv) store_float(state, index, p.state_dtype, elements(s[tile])[e]);
      }
    }
  }

  float2 load_values(thread const Head& head, int64_t step, constant GatedDeltaParams& p) const {
    const int64_t index = head.v_offset + step * p.v[1] + first * p.v[3];
    return float2(first < p.Dv ? load_float(head.v, index, p.dtype) : 0.0f,
                  first + 1 < p.Dv ? load_float(head.v, index + p.v[3], p.dtype) : 0.0f);
  }

  void store_outputs(thread const Head& head, int64_t step, constant GatedDeltaParams& p, float2 out) const {
    const int64_t index = head.y_offset + step * p.y[1] + first * p.y[3];
    if (first < p.Dv) store_float(head.y, index, p.dtype, out.x);
    if (first + 1 < p.Dv) store_float(head.y, index + p.y[3], p.dtype, out.y);
  }

  // Adds S k and S q of all steps, [steps, rows].
  void read(threadgroup const float* k, threadgroup const float* q, uint stride, uint Dk,
            thread metal::simdgroup_float8x8& with_k, thread metal::simdgroup_float8x8& with_q) const {
    metal::simdgroup_float8x8 steps, k_slice, q_slice;
#pragma clang loop unroll(full)
    for (uint slice = 0; slice < kTiles; slice += kSlice) {
      k_slice = q_slice = metal::simdgroup_float8x8(0.0f);
#pragma clang loop unroll(full)
      for (uint tile = slice; tile < slice + kSlice; ++tile) {
        if (kChunk * tile >= Dk) continue;
        metal::simdgroup_load(steps, k + kChunk * tile, stride);
        metal::simdgroup_multiply_accumulate(k_slice, steps, s[tile], k_slice);
        metal::simdgroup_load(steps, q + kChunk * tile, stride);
        metal::simdgroup_multiply_accumulate(q_slice, steps, s[tile], q_slice);
      }
      elements(with_k) += elements(k_slice);
      elements(with_q) += elements(q_slice);
    }
  }

  // S D(C) + sum_j k_j d_j, where `decay` has a D(C) a channel, or one for all. An element that the sum leaves equal is
  // kept: adding zero would turn -0 into 0, and padding leaves the state alone.
  void update(threadgroup const float* k, uint stride, uint Dk, thread const metal::simdgroup_float8x8& d,
              threadgroup const float* decay, float decay_of_all) {
    metal::simdgroup_float8x8 keys, updated;
#pragma clang loop unroll(full)
    for (uint tile = 0; tile < kTiles; ++tile) {
      if (kChunk * tile >= Dk) continue;
      elements(s[tile]) *= kPerChannel ? decay[channel(tile)] : decay_of_all;
      metal::simdgroup_load(keys, k + kChunk * tile, stride, ulong2(0), true);
      metal::simdgroup_multiply_accumulate(updated, keys, d, s[tile]);
      const float2 was = elements(s[tile]), now = elements(updated);
      elements(s[tile]) = metal::select(now, was, now == was);
    }
  }

  // The same steps by the recurrence, from the tensors themselves. Keys, queries and decays are spread over the lanes.
  void step_by_step(thread const Head& head, int64_t first_step, uint steps, constant GatedDeltaParams& p) {
    constexpr uint kParts = (kChunk * kTiles + 31) / 32;
    for (uint t = 0; t < steps; ++t) {
      const int64_t step = first_step + t;
      float k[kParts], q[kParts], g[kParts];
      const float decay = kPerChannel ? 0.0f : load_float(head.g, head.g_offset + step * p.g[1], p.g_dtype);
      const float beta = load_float(head.beta, head.beta_offset + step * p.beta[1], p.beta_dtype);
#pragma clang loop unroll(full)
      for (uint i = 0; i < kParts; ++i) {
        const uint c = 32 * i + lane;
        k[i] = c < p.Dk ? load_float(head.k, head.k_offset + step * p.k[1] + c * p.k[3], p.dtype) : 0.0f;
        q[i] = c < p.Dk ? load_float(head.q, head.q_offset + step * p.q[1] + c * p.q[3], p.dtype) : 0.0f;
        g[i] = decay;
        if (kPerChannel && c < p.Dk) g[i] = load_float(head.g, head.g_offset + step * p.g[1] + c * p.g[3], p.g_dtype);
      }
      float2 with_k = float2(0), with_q = float2(0);
#pragma clang loop unroll(full)
      for (uint tile = 0; tile < kTiles; ++tile) {
        const ushort from = ushort(kChunk * (tile % 4) + lane_row);
        const float k_c = metal::simd_shuffle(k[tile / 4], from), g_c = metal::simd_shuffle(g[tile / 4], from);
        if (channel(tile) < p.Dk) elements(s[tile]) *= g_c;
        with_k += elements(s[tile]) * k_c;
      }
      const float2 d = beta * (load_values(head, step, p) - sum_of_rows(with_k));
#pragma clang loop unroll(full)
      for (uint tile = 0; tile < kTiles; ++tile) {
        const ushort from = ushort(kChunk * (tile % 4) + lane_row);
        const float k_c = metal::simd_shuffle(k[tile / 4], from), q_c = metal::simd_shuffle(q[tile / 4], from);
        const float2 was = elements(s[tile]), now = was + d * k_c;
        if (channel(tile) < p.Dk) elements(s[tile]) = metal::select(now, was, now == was);
        with_q += elements(s[tile]) * q_c;
      }
      with_q = sum_of_rows(with_q);
      if (lane_row == 0) store_outputs(head, step, p, with_q);
    }
  }
};

// The product of g over the steps after `after`, up to and with `last`.
inline float decay_between(threadgroup const float* g, int after, int last) {
  float product = 1.0f;
#pragma clang loop unroll(full)
  for (int i = 0; i < int(kChunk); ++i) product *= i > after && i <= last ? g[i] : 1.0f;
  return product;
}

// One decay a step: x_i . D(i,j) k_j is D(i,j) times the product of two matrices. [i, j] below the diagonal, and on it
// where `with_diagonal`; the others are 0.
inline void pair_steps(threadgroup const float* x, threadgroup const float* k, uint stride, uint Dk,
                       threadgroup const float* g, uint lane, bool with_diagonal, threadgroup float* pairs) {
  metal::simdgroup_float8x8 left, right, slice;
  float2 sum = float2(0);
  for (uint begin = 0; begin < Dk; begin += kSlice * kChunk) {
    slice = metal::simdgroup_float8x8(0.0f);
    for (uint c = begin; c < metal::min(begin + kSlice * kChunk, Dk); c += kChunk) {
      metal::simdgroup_load(left, x + c, stride);
      metal::simdgroup_load(right, k + c, stride, ulong2(0), true);
      metal::simdgroup_multiply_accumulate(slice, left, right, slice);
    }
    sum += elements(slice);
  }
  const uint i = row_of_lane(lane), j = column_of_lane(lane);
#pragma clang loop unroll(full)
  for (uint e = 0; e < 2; ++e) {
    const bool counts = j + e < i || (with_diagonal && j + e == i);
    pairs[kChunk * i + j + e] = counts ? decay_between(g, int(j + e), int(i)) * sum[e] : 0.0f;
  }
}

// A decay a channel: column j of the products of keys and of queries with keys, by one simdgroup, lanes along the
// channels. k_j decays on the way from step j to step i.
inline void pair_steps_by_channel(uint j, threadgroup const float* k, threadgroup const float* q,
                                  threadgroup const float* g, uint stride, uint Dk, uint lane,
                                  threadgroup float* key_pairs, threadgroup float* query_pairs) {
  float with_k[kChunk], with_q[kChunk];
#pragma clang loop unroll(full)
  for (uint n = 0; n < kChunk; ++n) with_k[n] = with_q[n] = 0.0f;
  for (uint c = lane; c < Dk; c += 32) {
    float decayed = k[j * stride + c];
#pragma clang loop unroll(full)
    for (uint n = 0; n < kChunk; ++n) {  // step j + n
      if (j + n >= kChunk) continue;
      const uint at = (j + n) * stride + c;
      if (n > 0) decayed *= g[at];
      with_k[n] += k[at] * decayed;
      with_q[n] += q[at] * decayed;
    }
  }
  float key_pair = 0.0f, query_pair = 0.0f;  // of step i = lane
#pragma clang loop unroll(full)
  for (uint n = 0; n < kChunk; ++n) {
    const float of_keys = metal::simd_sum(with_k[n]), of_queries = metal::simd_sum(with_q[n]);
    if (lane != j + n) continue;
    if (n > 0) key_pair = of_keys;
    query_pair = of_queries;
  }
  if (lane < kChunk) {
    key_pairs[kChunk * lane + j] = key_pair;
    query_pairs[kChunk * lane + j] = query_pair;
  }
}

// Channel c of all steps, in place: k and q become D(i) k_i and D(i) q_i, g becomes D(C,i) k_i; and D(C).
inline void decay_channel(threadgroup float* k, threadgroup float* q, threadgroup float* g, uint stride, uint c,
                          threadgroup float* last) {
  float keys[kChunk], decays[kChunk], product = 1.0f;
#pragma clang loop unroll(full)
  for (uint i = 0; i < kChunk; ++i) {
    keys[i] = k[i * stride + c];
    decays[i] = g[i * stride + c];
    product *= decays[i];
    k[i * stride + c] = keys[i] * product;
    q[i * stride + c] *= product;
  }
  last[c] = product;
  product = 1.0f;
#pragma clang loop unroll(full)
  for (uint i = kChunk; i-- > 0;) {
    g[i * stride + c] = keys[i] * product;
    product *= decays[i];
  }
}

// d of all steps, from the right side of the system, in place: [steps, rows] in memory of this simdgroup's own. A lane
// solves for one row.
inline void solve(threadgroup float* d, threadgroup const float* pairs, threadgroup const float* beta, uint lane) {
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
  if (lane < kChunk) {
    float x[kChunk];
#pragma clang loop unroll(full)
    for (uint i = 0; i < kChunk; ++i) x[i] = d[kChunk * i + lane];
#pragma clang loop unroll(full)
    for (uint j = 0; j < kChunk; ++j) {
      x[j] *= beta[j];
#pragma clang loop unroll(full)
      for (uint i = j + 1; i < kChunk; ++i) x[i] -= pairs[kChunk * i + j] * x[j];
      d[kChunk * j + lane] = x[j];
    }
  }
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
}

template <uint kTiles, bool kPerChannel>
[[kernel, max_total_threads_per_threadgroup(256)]] void gated_delta_rule_chunked(
    device const void* q [[buffer(0)]], device const void* k [[buffer(1)]], device const void* v [[buffer(2)]],
    device const void* g [[buffer(3)]], device const void* beta [[buffer(4)]], device void* state [[buffer(5)]],
    device void* y [[buffer(6)]], constant GatedDeltaParams& p [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr uint kSimdgroups = 8, kThreads = 32 * kSimdgroups;
  constexpr uint kWidth = kChunk * kTiles, kStride = kWidth + 8;  // rows of a matrix lie in different banks
  threadgroup float keys[kChunk * kStride];
  threadgroup float queries[kChunk * kStride];
  threadgroup float decays[kPerChannel ? kChunk * kStride : kChunk];
  threadgroup float last_decay[kPerChannel ? kWidth : 1];
  threadgroup float betas[kChunk];
  threadgroup float key_pairs[kChunk * kChunk];
  threadgroup float query_pairs[kChunk * kChunk];
  threadgroup float updates[kSimdgroups * kChunk * kChunk];

  const int64_t b = group.z, h = group.y, key_head = group.y / p.heads_per_key;
  const Head head = {q,
                     k,
                     v,
                     g,
                     beta,
                     y,
                     b * p.q[0] + key_head * p.q[2],
                     b * p.k[0] + key_head * p.k[2],
                     b * p.v[0] + h * p.v[2],
                     b * p.g[0] + h * p.g[2],
                     b * p.beta[0] + h * p.beta[2],
                     b * p.y[0] + h * p.y[2]};
  const uint padded = (p.Dk + kChunk - 1) / kChunk * kChunk;
  const uint first_row = (group.x * kSimdgroups + simdgroup) * kChunk;
  const bool has_rows = first_row < p.Dv;

  Rows<kTiles, kPerChannel> rows;
  rows.lane = lane;
  rows.lane_row = row_of_lane(lane);
  rows.first = first_row + column_of_lane(lane);
  threadgroup float* const mine = updates + simdgroup * kChunk * kChunk;
  const int64_t state_offset = b * p.state[0] + h * p.state[1];
  rows.load(state, state_offset, p);

  for (int64_t first = 0; first < p.T; first += kChunk) {
    const uint steps = uint(metal::min(p.T - first, int64_t(kChunk)));
    const Block k_block = {steps, p.Dk, head.k_offset + first * p.k[1], p.k[1], p.k[3]};
    const Block q_block = {steps, p.Dk, head.q_offset + first * p.q[1], p.q[1], p.q[3]};
    copy_block<kChunk, kWidth, kStride, kThreads>(k, p.dtype, k_block, padded, 0.0f, keys, thread_index);
    copy_block<kChunk, kWidth, kStride, kThreads>(q, p.dtype, q_block, padded, 0.0f, queries, thread_index);
    if (kPerChannel) {
      const Block g_block = {steps, p.Dk, head.g_offset + first * p.g[1], p.g[1], p.g[3]};
      copy_block<kChunk, kWidth, kStride, kThreads>(g, p.g_dtype, g_block, padded, 1.0f, decays, thread_index);
    }
    if (thread_index < kChunk) {
      const bool is_step = thread_index < steps;
      const int64_t t = first + thread_index;
      betas[thread_index] = is_step ? load_float(beta, head.beta_offset + t * p.beta[1], p.beta_dtype) : 0.0f;
      if (!kPerChannel) {
        decays[thread_index] = is_step ? load_float(g, head.g_offset + t * p.g[1], p.g_dtype) : 1.0f;
      }
    }
    const float2 values = rows.lane_row < steps ? rows.load_values(head, first + rows.lane_row, p) : float2(0);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);

    if (kPerChannel) {
      pair_steps_by_channel(simdgroup, keys, queries, decays, kStride, p.Dk, lane, key_pairs, query_pairs);
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      if (thread_index < padded) decay_channel(keys, queries, decays, kStride, thread_index, last_decay);
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    } else if (simdgroup < 2) {
      pair_steps(simdgroup == 0 ? keys : queries, keys, kStride, p.Dk, decays, lane, simdgroup == 1,
                 simdgroup == 0 ? key_pairs : query_pairs);
    }

    metal::simdgroup_float8x8 with_k = metal::simdgroup_float8x8(0.0f), with_q = metal::simdgroup_float8x8(0.0f);
    if (has_rows) rows.read(keys, queries, kStride, p.Dk, with_k, with_q);
    if (!kPerChannel) {
      const float decay = decay_between(decays, -1, int(rows.lane_row));
      elements(with_k) *= decay;
      elements(with_q) *= decay;
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    }

    if (has_rows) {
      metal::simdgroup_float8x8 d, pairs;
      elements(d) = values - elements(with_k);
      metal::simdgroup_store(d, mine, kChunk);
      solve(mine, key_pairs, betas, lane);
      metal::simdgroup_load(d, mine, kChunk);
      metal::simdgroup_load(pairs, query_pairs, kChunk);
      metal::simdgroup_multiply_accumulate(with_q, pairs, d, with_q);
      const bool finite = metal::all(metal::isfinite(elements(d))) && metal::all(metal::isfinite(elements(with_q)));
      if (metal::simd_all(finite)) {
        if (rows.lane_row < steps) rows.store_outputs(head, first + rows.lane_row, p, elements(with_q));
        if (!kPerChannel) elements(d) *= decay_between(decays, int(rows.lane_row), int(kChunk) - 1);
        rows.update(kPerChannel ? decays : keys, kStride, p.Dk, d, last_decay,
                    kPerChannel ? 0.0f : decay_between(decays, -1, int(kChunk) - 1));
      } else {
        rows.step_by_step(head, first, steps, p);
      }
    }
    if (first + kChunk < p.T) metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }

  rows.store(state, state_offset, p);
}

#endif
