// Rows of x times the quantised matrix of their expert, for few pairs:
//   y[pair, n] = sum_k (scale * q[n, k] + bias) * x[k]
// Grid     threadgroups (pairs, ceil(N / 8)); threadgroup (32, 2): 2 simdgroups, each 4 rows of weights. Pairs come
//          first, so that those of one expert run at about the same time and find its weights in the cache.
// Method   a lane has 32 weights at a time of each of its rows, 4 * bits bytes: one load of 16 bytes for 4 bits, two
// for
//          8. They meet values of x that were converted, summed and scaled once for the four rows. A group contributes
//          scale * sum(q' x) + bias' * sum(x), lane by lane, where q' is q less the middle of its range, which bias'
//          makes up for: with q itself the two terms are large and nearly cancel, and so lose digits. One simd_sum a
//          row at the end.
// Needs    nothing: w, x, scales and biases of any strides; see wide_w and wide_x for when it is quick.
#include <metal_stdlib>

#include "gather_qmv_rows.h"
#include "gather_qmv_weights.h"

using namespace metal;

// The sum of one lane by dequantised weights. Needed where the result is inf or NaN: the two sums above may be where
// scale * q + bias, times x, is not, or the reverse.
inline float multiply_exactly(device const void* x, int64_t x_row, device const uchar* w_row, device const void* scales,
                              int64_t scale_row, device const void* biases, int64_t bias_row,
                              constant GatherQmvParams& p, uint lane) {
  float total = 0;
  for (uint k = lane; k < p.K; k += 32) {
    const uint group = k >> p.group_shift;
    const float scale = load_group(scales, p.scales, scale_row, group);
    const float bias = load_group(biases, p.biases, bias_row, group);
    const float weight = scale * load_weight(w_row, p.w_stride, p.bits, k) + bias;
    total += weight * load_float(x, x_row + int64_t(k) * p.x_stride, p.dtype);
  }
  return total;
}

template <int kBits>
[[kernel]] void gather_qmv_decode(device const void* x [[buffer(0)]], device const uchar* w [[buffer(1)]],
                                  device const void* scales [[buffer(2)]], device const void* biases [[buffer(3)]],
                                  device const void* expert_indices [[buffer(4)]], device void* y [[buffer(5)]],
                                  constant GatherQmvParams& p [[buffer(6)]], uint2 at [[threadgroup_position_in_grid]],
                                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                                  uint lane [[thread_index_in_simdgroup]]) {
  constexpr int kRows = kDecodeOutputs, kUnit = 32, kHalf = kUnit / 2, kBytes = kUnit * kBits / 8;
  const uint pair = at.x, n = (at.y * kDecodeSimdgroups + simdgroup) * kRows;
  if (n >= p.N) return;
  const int rows = int(min(p.N - n, uint(kRows)));
  const uint expert = read_expert(expert_indices, p, pair);
  const int64_t y_row = int64_t(pair) * p.N + n;
  if (expert >= p.E) {
    if (int(lane) < rows) store_float(y, y_row + lane, p.dtype, no_expert_value(expert, p.E));
    return;
  }

  const int64_t x_row = row_offset(p.x_rows, pair / p.top_k);
  const int64_t scale_row = expert * p.scales.expert_stride + n * p.scales.row_stride;
  const int64_t bias_row = expert * p.biases.expert_stride + n * p.biases.row_stride;
  device const uchar* const w_row = w + expert * p.w_expert_stride + n * p.w_row_stride;
  float totals[kRows] = {};
  for (uint k = lane * kUnit; k < p.K; k += 32 * kUnit) {
    uint words[kRows][kBytes / 4] = {};
    const int64_t first_byte = int64_t(k / 8 * kBits) * p.w_stride;
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      device const uchar* const from = w_row + r * p.w_row_stride + first_byte;
      if (r >= rows) {
        continue;
      } else if (p.wide_w) {
        load_words<kBytes>(from, words[r]);
      } else {
        load_bytes<kBytes>(from, p.w_stride, p.K - k < uint(kUnit) ? kBytes / 2 : kBytes, words[r]);
      }
    }
    float scale[kRows] = {}, bias[kRows] = {};
#pragma unroll
    for (int half_unit = 0; half_unit < 2; half_unit++) {
      const int i0 = half_unit * kHalf;
      const uint k0 = k + uint(i0);
      if (k0 >= p.K) continue;  // K is a multiple of 16, not always of 32
      float values[kHalf], sum = 0, sums[kRows] = {};
      load_x<kHalf>(x, p, x_row + int64_t(k0) * p.x_stride, values);
#pragma unroll
      for (int i = 0; i < kHalf; i++) {
        sum += values[i];
        values[i] *= 1.0f / PackedWeights<kBits>::power(i0 + i);
      }
#pragma unroll
      for (int i = 0; i < kHalf; i++) {
#pragma unroll
        for (int r = 0; r < kRows; r++) {
          sums[r] += PackedWeights<kBits>::centred(words[r], i0 + i) * values[i];
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; r++) {
        if (r >= rows) continue;
        if (half_unit == 0 || p.group_shift == 4) {
          const uint group = k0 >> p.group_shift;
          scale[r] = load_group(scales, p.scales, scale_row + r * p.scales.row_stride, group);
          bias[r] = load_group(biases, p.biases, bias_row + r * p.biases.row_stride, group);
          bias[r] += scale[r] * float(PackedWeights<kBits>::middle());
        }
        totals[r] += scale[r] * sums[r] + bias[r] * sum;
      }
    }
  }

#pragma unroll
  for (int r = 0; r < kRows; r++) {
    if (r >= rows) continue;
    float total = simd_sum(totals[r]);
    if (!isfinite(total)) {
      total =
          simd_sum(multiply_exactly(x, x_row, w_row + r * p.w_row_stride, scales, scale_row + r * p.scales.row_stride,
                                    biases, bias_row + r * p.biases.row_stride, p, lane));
    }
    if (int(lane) == r) store_float(y, y_row + r, p.dtype, total);
  }
}

#define TMO_DECODE(bits) \
  template               \
      [[host_name("gather_qmv_decode_b" #bits)]] [[kernel]] decltype(gather_qmv_decode<bits>) gather_qmv_decode<bits>;
TMO_DECODE(2)
TMO_DECODE(3)
TMO_DECODE(4)
TMO_DECODE(5)
TMO_DECODE(6)
TMO_DECODE(8)
