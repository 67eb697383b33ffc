// Rows of x times the quantised matrix of their expert, for many pairs. They are grouped by expert on the GPU, so that
// a tile of weights is read and dequantised once for up to 32 pairs of an expert. Five launches:
//   gather_qmv_clear  zeros, to count from
//   gather_qmv_count  how many pairs each expert has, and each pair's rank among them
//   gather_qmv_start  where each expert's pairs and tiles begin: prefix sums, in one threadgroup
//   gather_qmv_sort   the pairs, sorted by expert, and the list of tiles
//   gather_qmv_tile   the products, one threadgroup a tile and 64 rows of weights; nobody but the GPU knows the number
//                     of tiles, so the grid has as many as there can be and those beyond the number end at once
// Pairs without an expert are the tiles of an expert E, those whose index is out of range of an expert E + 1; these
// only fill their rows. The rank, and so a pair's place in a tile, can differ from call to call. Its result cannot:
// each row of a product of matrices depends on that row of x only.
#include <metal_stdlib>

#include "gather_qmv_rows.h"
#include "gather_qmv_weights.h"

using namespace metal;

// Grid     a thread an element of counts
[[kernel]] void gather_qmv_clear(device uint* counts [[buffer(0)]], constant GatherQmvParams& p [[buffer(1)]],
                                 uint i [[thread_position_in_grid]]) {
  if (i < p.E + 3) counts[i] = 0u;
}

// counts [E + 3]: pairs an expert; the last element is for the number of tiles. ranks [pairs].
// Grid     a thread a pair
[[kernel]] void gather_qmv_count(device const void* expert_indices [[buffer(0)]],
                                 device atomic_uint* counts [[buffer(1)]], device uint* ranks [[buffer(2)]],
                                 constant GatherQmvParams& p [[buffer(3)]], uint pair [[thread_position_in_grid]]) {
  if (pair >= p.pairs) return;
  const uint expert = read_expert(expert_indices, p, pair);
  ranks[pair] = atomic_fetch_add_explicit(&counts[expert], 1u, memory_order_relaxed);
}

// starts [E + 2]: the place in `sorted` and in `tiles` where the expert's begin.
// Grid     one threadgroup of 256
[[kernel]] void gather_qmv_start(device uint* counts [[buffer(0)]], device uint2* starts [[buffer(1)]],
                                 constant GatherQmvParams& p [[buffer(2)]], uint i [[thread_index_in_threadgroup]],
                                 uint simdgroup [[simdgroup_index_in_threadgroup]],
                                 uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint kSimdgroups = kGroupingThreads / 32;
  threadgroup uint2 sums[kSimdgroups];
  const uint experts = p.E + 2;
  uint2 start = uint2(0);
  for (uint first = 0; first < experts; first += kGroupingThreads) {
    const uint expert = first + i;
    const uint pairs = expert < experts ? counts[expert] : 0u;
    const uint tiles = (pairs + kTilePairs - 1) / kTilePairs;
    const uint2 before = uint2(simd_prefix_exclusive_sum(pairs), simd_prefix_exclusive_sum(tiles));
    if (lane == 31) sums[simdgroup] = before + uint2(pairs, tiles);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint2 own = start + before;
    for (uint s = 0; s < kSimdgroups; s++) {
      if (s < simdgroup) own += sums[s];
      start += sums[s];
    }
    if (expert < experts) starts[expert] = own;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (i == 0) counts[experts] = start.y;
}

// Grid     a thread a pair; the first of each tile also writes the tile
[[kernel]] void gather_qmv_sort(device const void* expert_indices [[buffer(0)]],
                                device const uint* counts [[buffer(1)]], device const uint2* starts [[buffer(2)]],
                                device const uint* ranks [[buffer(3)]], device uint* sorted [[buffer(4)]],
                                device uint4* tiles [[buffer(5)]], constant GatherQmvParams& p [[buffer(6)]],
                                uint pair [[thread_position_in_grid]]) {
  if (pair >= p.pairs) return;
  const uint expert = read_expert(expert_indices, p, pair), rank = ranks[pair];
  const uint2 start = starts[expert];
  sorted[start.x + rank] = pair;
  if (rank % kTilePairs == 0) {
    const uint count = min(counts[expert] - rank, uint(kTilePairs));
    tiles[start.y + rank / kTilePairs] = uint4(expert, start.x + rank, count, 0u);
  }
}

// What a tile has in threadgroup memory: 32 columns, and 4 more so that rows begin at different banks.
constant constexpr uint kTileColumns = 32;
constant constexpr uint kTileStride = kTileColumns + 4;
constant constexpr uint kOutputStride = kTileOutputs + 4;
// A sum of products is long when K is. Adding up sums of so many columns bounds the rounding.
constant constexpr uint kSumColumns = 2 * kTileColumns;

// The 8 x 8 matrices of a simdgroup's products: pairs by outputs.
constant constexpr int kPairBlocks = kTilePairs / 8;
constant constexpr int kOutputBlocks = kTileOutputs * 32 / kTileThreads / 8;
constant constexpr int kBlocks = kPairBlocks * kOutputBlocks;

// 16 weights of a row, dequantised; zeros beyond the matrix.
template <int kBits>
inline void dequantize(device const uchar* w_row, device const void* scales, int64_t scale_row,
                       device const void* biases, int64_t bias_row, constant GatherQmvParams& p, bool inside, uint k,
                       threadgroup float4* to) {
  constexpr int kWeights = 16, kBytes = kWeights * kBits / 8;
  if (!inside || k >= p.K) {
    for (int i = 0; i < kWeights / 4; i++) to[i] = float4(0.0f);
    return;
  }
  uint words[(kBytes + 3) / 4];
  device const uchar* const from = w_row + int64_t(k / 8 * kBits) * p.w_stride;
  if (p.wide_w) {
    load_words<kBytes>(from, words);
  } else {
    load_bytes<kBytes>(from, p.w_stride, kBytes, words);
  }
  const uint group = k >> p.group_shift;
  const float scale = load_group(scales, p.scales, scale_row, group);
  const float bias = load_group(biases, p.biases, bias_row, group);
  float values[kWeights];
#pragma unroll
  for (int i = 0; i < kWeights; i++) {
    values[i] = PackedWeights<kBits>::plain(words, i) * (scale * (1.0f / PackedWeights<kBits>::power(i))) + bias;
  }
#pragma unroll
  for (int i = 0; i < kWeights / 4; i++) {
    to[i] = float4(values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3]);
  }
}

// products += the tile's rows of x times the simdgroup's rows of weights.
inline void multiply_columns(threadgroup const float* x, threadgroup const float* w, int pair_blocks,
                             thread simdgroup_float8x8* products) {
#pragma unroll
  for (int c = 0; c < int(kTileColumns); c += 8) {
    simdgroup_float8x8 rows, weights[kOutputBlocks];
#pragma unroll
    for (int b = 0; b < kOutputBlocks; b++) {
      simdgroup_load(weights[b], w + b * 8 * int(kTileStride) + c, kTileStride, ulong2(0, 0), true);
    }
#pragma unroll
    for (int a = 0; a < kPairBlocks; a++) {
      if (a >= pair_blocks) continue;
      simdgroup_load(rows, x + a * 8 * int(kTileStride) + c, kTileStride);
#pragma unroll
      for (int b = 0; b < kOutputBlocks; b++) {
        const int block = a * kOutputBlocks + b;
        simdgroup_multiply_accumulate(products[block], rows, weights[b], products[block]);
      }
    }
  }
}

// What this lane holds of a matrix: two neighbours of a row.
inline thread float2& elements(thread simdgroup_float8x8& matrix) {
  return reinterpret_cast<thread float2&>(matrix.thread_elements());
}

// tiles, sorted, counts: from the kernels above.
// Grid     threadgroups (ceil(N / 64), tiles that there can be); threadgroup (128): 4 simdgroups, each all pairs of the
//          tile times 16 rows of weights, 4 x 2 matrices of 8 x 8
// Method   32 columns at a time, of x and of dequantised weights, in threadgroup memory, all in float32. A thread
//          dequantises 16 columns of one row of weights and converts 8 columns of one row of x. Rows of eight pairs
//          that the tile does not have are not multiplied.
template <int kBits>
[[kernel]] void gather_qmv_tile(device const void* x [[buffer(0)]], device const uchar* w [[buffer(1)]],
                                device const void* scales [[buffer(2)]], device const void* biases [[buffer(3)]],
                                device const uint4* tiles [[buffer(4)]], device const uint* sorted [[buffer(5)]],
                                device const uint* counts [[buffer(6)]], device void* y [[buffer(7)]],
                                constant GatherQmvParams& p [[buffer(8)]], uint2 at [[threadgroup_position_in_grid]],
                                uint i [[thread_index_in_threadgroup]],
                                uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float4 x_memory[kTilePairs * kTileStride / 4];
  threadgroup float4 w_memory[kTileOutputs * kTileStride / 4];  // of the results, too, in the end
  if (at.y >= counts[p.E + 2]) return;
  const uint4 tile = tiles[at.y];
  const uint expert = tile.x, first = tile.y, count = tile.z, n0 = at.x * kTileOutputs;
  threadgroup float* const w_tile = reinterpret_cast<threadgroup float*>(w_memory);
  threadgroup float* const x_tile = reinterpret_cast<threadgroup float*>(x_memory);

  if (expert < p.E) {
    const uint w_row = i / 2, w_column = i % 2 * 16, x_row = i / 4, x_column = i % 4 * 8;
    const uint n = n0 + w_row;
    const bool has_weights = n < p.N, has_x = x_row < count;
    const int64_t w_offset = has_weights ? expert * p.w_expert_stride + n * p.w_row_stride : 0;
    const int64_t scale_row = expert * p.scales.expert_stride + n * p.scales.row_stride;
    const int64_t bias_row = expert * p.biases.expert_stride + n * p.biases.row_stride;
    const int64_t x_offset = has_x ? row_offset(p.x_rows, sorted[first + x_row] / p.top_k) : 0;
    threadgroup float4* const w_to = w_memory + (w_row * kTileStride + w_column) / 4;
    threadgroup float4* const x_to = x_memory + (x_row * kTileStride + x_column) / 4;
    threadgroup const float* const w_from = w_tile + simdgroup * kOutputBlocks * 8 * kTileStride;
    const int pair_blocks = int(count + 7) / 8;

    float2 totals[kBlocks] = {};
    for (uint sum = 0; sum < p.K; sum += kSumColumns) {
      simdgroup_float8x8 products[kBlocks];
#pragma unroll
      for (int b = 0; b < kBlocks; b++) products[b] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      for (uint k = sum; k < min(sum + kSumColumns, p.K); k += kTileColumns) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        dequantize<kBits>(w + w_offset, scales, scale_row, biases, bias_row, p, has_weights, k + w_column, w_to);
        float values[8] = {};
        if (has_x && k + x_column < p.K) {
          load_x<8>(x, p, x_offset + int64_t(k + x_column) * p.x_stride, values);
        }
        x_to[0] = float4(values[0], values[1], values[2], values[3]);
        x_to[1] = float4(values[4], values[5], values[6], values[7]);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply_columns(x_tile, w_from, pair_blocks, products);
      }
#pragma unroll
      for (int b = 0; b < kBlocks; b++) totals[b] += elements(products[b]);
    }

    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float* const y_to = w_tile + simdgroup * kOutputBlocks * 8;
#pragma unroll
    for (int b = 0; b < kBlocks; b++) {
      if (b / kOutputBlocks >= pair_blocks) continue;
      simdgroup_float8x8 total;
      elements(total) = totals[b];
      simdgroup_store(total, y_to + b / kOutputBlocks * 8 * int(kOutputStride) + b % kOutputBlocks * 8, kOutputStride);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  const uint column = i % kTileOutputs;
  for (uint m = i / kTileOutputs; m < count && n0 + column < p.N; m += kTileThreads / kTileOutputs) {
    const float value = expert < p.E ? w_tile[m * kOutputStride + column] : no_expert_value(expert, p.E);
    store_float(y, int64_t(sorted[first + m]) * p.N + n0 + column, p.dtype, value);
  }
}

#define TMO_TILE(bits) \
  template [[host_name("gather_qmv_tile_b" #bits)]] [[kernel]] decltype(gather_qmv_tile<bits>) gather_qmv_tile<bits>;
TMO_TILE(2)
TMO_TILE(3)
TMO_TILE(4)
TMO_TILE(5)
TMO_TILE(6)
TMO_TILE(8)
