// Rows of x times the quantised matrix of their expert: y[p, n] = sum_k (scale * q + bias) x[p, k].
//
// Few rows: the packed weights are read once, as a stream, and never stored dequantised. A group contributes
// scale * sum(q' x) + bias' * sum(x), where sum(x) is the same for all n. q' is q less the middle of its range, which
// bias' makes up for: with q itself the two terms are large and nearly cancel, and so lose digits.
// Many rows: blocks of dequantised weights times panels of x in transposed order, by gemm.h; the weights stand on the
// left, so that they are used in the order in which they lie.
// Both visit k in the order of gather_qmv_format.h, in which x is arranged once a tile.
#pragma once

#include "gather_qmv_format.h"
#include "gather_qmv_params.h"
#include "gemm.h"

namespace tmo::cpu::TMO_ISA {

// Columns of a panel of x: one register tile of gemm.h.
constexpr int64_t kPanel = kTileVectors * kLanes;

// The longest sum that is made term by term; the sums of such pieces are added up. It bounds the rounding.
constexpr int64_t kSumLength = 64;

TMO_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// -- rows of memory to and from float32

template <class T>
TMO_INLINE void load_row(const T* from, int64_t stride, int64_t count, float* to) {
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  }
  for (; i < count; ++i) to[i] = float(from[i * stride]);
}

// from[offset], from[offset + stride], ...
TMO_INLINE void load_row(Dtype dtype, const void* from, int64_t offset, int64_t stride, int64_t count, float* to) {
  switch (dtype) {
    case Dtype::f32:
      return load_row(static_cast<const float*>(from) + offset, stride, count, to);
    case Dtype::f16:
      return load_row(static_cast<const c10::Half*>(from) + offset, stride, count, to);
    default:
      return load_row(static_cast<const c10::BFloat16*>(from) + offset, stride, count, to);
  }
}

template <class T>
TMO_INLINE void store_row(const float* from, int64_t count, T* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  if (i < count) store_n(to + i, load_n(from + i, count - i), count - i);
}

TMO_INLINE void store_row(Dtype dtype, const float* from, int64_t count, void* to, int64_t offset) {
  switch (dtype) {
    case Dtype::f32:
      return store_row(from, count, static_cast<float*>(to) + offset);
    case Dtype::f16:
      return store_row(from, count, static_cast<c10::Half*>(to) + offset);
    default:
      return store_row(from, count, static_cast<c10::BFloat16*>(to) + offset);
  }
}

// -- scratch memory: one buffer a thread, cut up the same way whatever the tile

struct Scratch {
  int64_t K, groups;  // the lengths of a row of x and of a row of groups, with room to be read in whole vectors
  float *row, *x, *x_sums, *scales, *biases, *weights, *y;
  uint8_t* bytes;

  // Without a buffer, finds out how many floats it needs.
  Scratch(const GatherQmvParams& p, float* buffer, int64_t* size) {
    K = round_up(p.K, 16 * kLanes);  // the largest block, that of 2 bits
    groups = round_up(p.K / p.group_size, kLanes) + kLanes;
    int64_t used = 0;
    const auto take = [&](int64_t count) {
      float* const start = buffer + used;
      used += round_up(count, 16);
      return start;
    };
    row = take(K);
    x = take(K * round_up(kManyRows, kPanel));
    x_sums = take(groups * kFewRows);
    scales = take(groups);
    biases = take(groups);
    weights = take(kWeightRows * kWeightColumns);
    y = take(kWeightRows * round_up(kManyRows, kPanel));
    bytes = reinterpret_cast<uint8_t*>(take((K * p.bits / 8 + 16) / 4));
    *size = used;
  }
};

// -- weights

// kGroups is how many groups a block spans, and 0 where a group is several blocks.

// The number of blocks that one vector of scales serves.
template <int kGroups, class F>
TMO_INLINE int64_t blocks_per_group(const GatherQmvParams& p) {
  return kGroups == 0 ? p.group_size / F::kWeights : 1;
}

// The packed weights from k on, of which whole blocks may be read: in place, or a copy where they are not contiguous or
// where the blocks reach beyond the end of w.
template <class F>
TMO_INLINE const uint8_t* packed_row(const GatherQmvParams& p, int64_t expert, int64_t n, int64_t k, int64_t blocks,
                                     uint8_t* copy) {
  const uint8_t* from = p.w + expert * p.w_expert_stride + n * p.w_row_stride + k * p.bits / 8 * p.w_stride;
  if (p.w_stride == 1 && blocks * F::kBytes + F::kSlack <= p.w_end - from) return from;
  const int64_t rest = (p.K - k) * p.bits / 8, whole = blocks * F::kBytes;
  const int64_t count = rest < whole ? rest : whole;
  for (int64_t i = 0; i < count; ++i) copy[i] = from[i * p.w_stride];
  return copy;
}

// Scales or biases of groups first to first + count - 1.
TMO_INLINE void load_groups(const GroupParameters& g, int64_t expert, int64_t n, int64_t first, int64_t count,
                            float* to) {
  load_row(g.dtype, g.data, expert * g.expert_stride + n * g.row_stride + first * g.stride, g.stride, count, to);
}

// (scale * q + bias) * 2^shift, in the order of the format.
template <class F, int kGroups>
void dequantize(const uint8_t* bytes, const float* scales, const float* biases, int64_t blocks,
                int64_t blocks_per_group, float* to) {
  for (int64_t b = 0; b < blocks;) {
    const f32v scale = spread<kGroups>(scales), bias = spread<kGroups>(biases);
    scales += kGroups == 0 ? 1 : kGroups, biases += kGroups == 0 ? 1 : kGroups;
    for (const int64_t end = b + blocks_per_group; b < end; ++b) {
      f32v q[F::kSteps];
      F::template unpack<0>(bytes, q);
#pragma GCC unroll 16
      for (int step = 0; step < F::kSteps; ++step) {
        store(to + step * kLanes, q[step] * scale + bias * F::factors(step));
      }
      bytes += F::kBytes, to += F::kWeights;
    }
  }
}

// Adds the sums of scale * q' * x over one row of weights, for kRows rows of x. Two sums a row where there is
// one row: the additions of one sum wait for each other.
template <class F, int kGroups, int kRows>
TMO_INLINE void multiply(const uint8_t* bytes, const float* scales, int64_t blocks, int64_t blocks_per_group,
                         const float* x, int64_t ldx, f32v (&totals)[kRows]) {
  constexpr int kSums = kRows == 1 ? 2 : 1;
  for (int64_t b = 0; b < blocks;) {
    f32v sums[kRows][kSums] = {};
    for (const int64_t end = b + blocks_per_group; b < end; ++b) {
      f32v q[F::kSteps];
      F::template unpack<F::kMiddle>(bytes, q);
#pragma GCC unroll 16
      for (int step = 0; step < F::kSteps; ++step) {
#pragma GCC unroll 4
        for (int m = 0; m < kRows; ++m) sums[m][step % kSums] += q[step] * load(x + m * ldx + step * kLanes);
      }
      bytes += F::kBytes, x += F::kWeights;
    }
    const f32v scale = spread<kGroups>(scales);
    scales += kGroups == 0 ? 1 : kGroups;
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      totals[m] += (kSums == 2 ? sums[m][0] + sums[m][kSums - 1] : sums[m][0]) * scale;
    }
  }
}

// -- a tile of few rows

// The sum of x over each group.
inline void sum_groups(const GatherQmvParams& p, const float* x, float* sums) {
  for (int64_t g = 0; g < p.K / p.group_size; ++g, x += p.group_size) {
    f32v total{};
    for (int64_t k = 0; k < p.group_size; k += kLanes) total += load(x + k);
    sums[g] = sum(total);
  }
}

// The same by dequantised weights. Needed where the result is inf or NaN: the two sums may be where
// scale * q + bias, times x, is not, or the reverse.
template <class F, int kGroups>
float multiply_exactly(const GatherQmvParams& p, const uint8_t* bytes, int64_t blocks, const Scratch& s,
                       const float* x) {
  const int64_t step = kWeightColumns / F::kWeights;
  f32v total{};
  for (int64_t b = 0; b < blocks; b += step) {
    const int64_t count = blocks - b < step ? blocks - b : step, group = b * F::kWeights / p.group_size;
    dequantize<F, kGroups>(bytes + b * F::kBytes, s.scales + group, s.biases + group, count,
                           blocks_per_group<kGroups, F>(p), s.weights);
    for (int64_t k = 0; k < count * F::kWeights; k += kLanes) {
      total += load(s.weights + k) * load(x + b * F::kWeights + k);
    }
  }
  return sum(total);
}

// One row of weights, whose scales and biases are in scratch memory, times rows m to m + kRows - 1 of the tile.
template <class F, int kGroups, int kRows>
TMO_INLINE void multiply_rows(const GatherQmvParams& p, const uint8_t* bytes, int64_t blocks, const Scratch& s,
                              int64_t m, float* y) {
  f32v totals[kRows] = {};
  multiply<F, kGroups, kRows>(bytes, s.scales, blocks, blocks_per_group<kGroups, F>(p), s.x + m * s.K, s.K, totals);
  for (int64_t g = 0; g < p.K / p.group_size; g += kLanes) {
    const f32v middle = load(s.scales + g) * float(F::kMiddle) + load(s.biases + g);
    for (int i = 0; i < kRows; ++i) totals[i] += middle * load(s.x_sums + (m + i) * s.groups + g);
  }
  for (int i = 0; i < kRows; ++i) {
    const float result = sum(totals[i]);
    const bool finite = result - result == 0;
    y[(m + i) * kWeightRows] = finite ? result : multiply_exactly<F, kGroups>(p, bytes, blocks, s, s.x + (m + i) * s.K);
  }
}

template <class F, int kGroups>
void multiply_few(const GatherQmvParams& p, const GatherQmvTile& tile, int64_t n_begin, int64_t n_end,
                  const Scratch& s) {
  const int64_t blocks = (p.K + F::kWeights - 1) / F::kWeights, groups = p.K / p.group_size;
  for (int64_t i = groups; i < s.groups; ++i) {
    s.scales[i] = s.biases[i] = 0;
    for (int64_t m = 0; m < tile.count; ++m) s.x_sums[m * s.groups + i] = 0;
  }
  for (int64_t n = n_begin; n < n_end; n += kWeightRows) {
    const int64_t rows = n_end - n < kWeightRows ? n_end - n : kWeightRows;
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* const bytes = packed_row<F>(p, tile.expert, n + r, 0, blocks, s.bytes);
      load_groups(p.scales, tile.expert, n + r, 0, groups, s.scales);
      load_groups(p.biases, tile.expert, n + r, 0, groups, s.biases);
      int64_t m = 0;
      for (; m + 4 <= tile.count; m += 4) multiply_rows<F, kGroups, 4>(p, bytes, blocks, s, m, s.y + r);
      for (; m + 2 <= tile.count; m += 2) multiply_rows<F, kGroups, 2>(p, bytes, blocks, s, m, s.y + r);
      for (; m < tile.count; ++m) multiply_rows<F, kGroups, 1>(p, bytes, blocks, s, m, s.y + r);
    }
    for (int64_t m = 0; m < tile.count; ++m) {
      store_row(p.dtype, s.y + m * kWeightRows, rows, p.out, p.pairs[tile.first + m] * p.N + n);
    }
  }
}

// -- a tile of many rows

template <class F, int kGroups>
void multiply_many(const GatherQmvParams& p, const GatherQmvTile& tile, int64_t n_begin, int64_t n_end,
                   const Scratch& s) {
  const int64_t K = round_up(p.K, F::kWeights), ldy = round_up(kManyRows, kPanel);
  for (int64_t n = n_begin; n < n_end; n += kWeightRows) {
    const int64_t rows = n_end - n < kWeightRows ? n_end - n : kWeightRows;
    for (int64_t k = 0; k < K; k += kWeightColumns) {
      const int64_t columns = K - k < kWeightColumns ? K - k : kWeightColumns, blocks = columns / F::kWeights;
      const int64_t group = k / p.group_size;
      const int64_t groups = ((p.K - k < columns ? p.K - k : columns)) / p.group_size;
      for (int64_t i = groups; i < groups + kGroups; ++i) s.scales[i] = s.biases[i] = 0;
      for (int64_t r = 0; r < rows; ++r) {
        const uint8_t* const bytes = packed_row<F>(p, tile.expert, n + r, k, blocks, s.bytes);
        load_groups(p.scales, tile.expert, n + r, group, groups, s.scales);
        load_groups(p.biases, tile.expert, n + r, group, groups, s.biases);
        dequantize<F, kGroups>(bytes, s.scales, s.biases, blocks, blocks_per_group<kGroups, F>(p),
                               s.weights + r * kWeightColumns);
      }
      for (int64_t m = 0; m < tile.count; m += kPanel) {
        const int64_t width = tile.count - m < kPanel ? tile.count - m : kPanel;
        const float* const x = s.x + m * s.K + k * kPanel;
        for (int64_t done = 0; done < columns; done += kSumLength) {
          const int64_t length = columns - done < kSumLength ? columns - done : kSumLength;
          const auto product = k + done == 0 ? gemm<false> : gemm<true>;
          product(rows, width, length, s.weights + done, kWeightColumns, x + done * kPanel, kPanel, s.y + m, ldy);
        }
      }
    }
    for (int64_t m = 0; m < tile.count; ++m) {
      float y[kWeightRows];
      for (int64_t r = 0; r < rows; ++r) y[r] = s.y[r * ldy + m];
      store_row(p.dtype, y, rows, p.out, p.pairs[tile.first + m] * p.N + n);
    }
  }
}

// -- a tile

// Brings the tile's rows of x into the order of the format: one after another, or as panels of kPanel columns.
template <class F>
void arrange_rows(const GatherQmvParams& p, const GatherQmvTile& tile, bool few, const Scratch& s) {
  const int64_t K = round_up(p.K, F::kWeights), blocks = K / F::kWeights;
  for (int64_t i = p.K; i < K; ++i) s.row[i] = 0;
  for (int64_t m = 0; m < tile.count; ++m) {
    const int64_t row = p.pairs[tile.first + m] / p.pairs_per_row;
    load_row(p.dtype, p.x, p.x_offsets[row], p.x_stride, p.K, s.row);
    float* const to = few ? s.x + m * s.K : s.x + m / kPanel * kPanel * s.K + m % kPanel;
    arrange<F>(s.row, blocks, to, few ? 1 : kPanel);
    if (few) sum_groups(p, s.row, s.x_sums + m * s.groups);
  }
  // what gemm.h reads beyond the last column, in whole vectors
  for (int64_t m = tile.count; !few && m % kLanes != 0; ++m) {
    float* const column = s.x + m / kPanel * kPanel * s.K + m % kPanel;
    for (int64_t k = 0; k < K; ++k) column[k * kPanel] = 0;
  }
}

template <class F, int kGroups>
void multiply_tile(const GatherQmvParams& p, const GatherQmvTile& tile, int64_t n_begin, int64_t n_end,
                   const Scratch& s) {
  const bool few = tile.count <= kFewRows;
  arrange_rows<F>(p, tile, few, s);
  (few ? multiply_few<F, kGroups> : multiply_many<F, kGroups>)(p, tile, n_begin, n_end, s);
}

template <class F, int kGroups = 1>
void choose_groups(const GatherQmvParams& p, const GatherQmvTile& tile, int64_t n_begin, int64_t n_end,
                   const Scratch& s) {
  if (F::kWeights == p.group_size * kGroups) return multiply_tile<F, kGroups>(p, tile, n_begin, n_end, s);
  if constexpr (F::kWeights / kGroups > 16) {
    if (F::kWeights > p.group_size) return choose_groups<F, kGroups * 2>(p, tile, n_begin, n_end, s);
  }
  multiply_tile<F, 0>(p, tile, n_begin, n_end, s);
}

// Rows n_begin to n_end - 1 of the weights, for the rows of one tile.
inline void gather_qmv(const GatherQmvParams& p, const GatherQmvTile& tile, int64_t n_begin, int64_t n_end,
                       float* scratch) {
  int64_t size;
  const Scratch s(p, scratch, &size);
  switch (p.bits) {
    case 2:
      return choose_groups<Format<2>>(p, tile, n_begin, n_end, s);
    case 3:
      return choose_groups<Format<3>>(p, tile, n_begin, n_end, s);
    case 4:
      return choose_groups<Format<4>>(p, tile, n_begin, n_end, s);
    case 5:
      return choose_groups<Format<5>>(p, tile, n_begin, n_end, s);
    case 6:
      return choose_groups<Format<6>>(p, tile, n_begin, n_end, s);
    case 8:
      return choose_groups<Format<8>>(p, tile, n_begin, n_end, s);
  }
}

// The number of floats of scratch memory that gather_qmv needs.
inline int64_t gather_qmv_scratch(const GatherQmvParams& p) {
  int64_t size;
  Scratch(p, nullptr, &size);
  return size;
}

}  // namespace tmo::cpu::TMO_ISA
