// What gather_qmv's host code tells its kernels. Strides are in elements. A pair is a row of the output: one row of x
// with one of its experts.
#ifndef TMO_MPS_GATHER_QMV_PARAMS_H
#define TMO_MPS_GATHER_QMV_PARAMS_H

#include "common/dtype.h"

enum GatherQmvSizes : uint32_t {
  kMaxRowDims = 8,
  kDecodeOutputs = 4,     // rows of weights a simdgroup of the decode kernels has
  kDecodeSimdgroups = 2,  // in a threadgroup of them
  kTilePairs = 32,        // pairs of one expert that the tile kernels multiply together,
  kTileOutputs = 64,      // and with how many rows of weights
  kTileThreads = 128,
  kGroupingThreads = 256,
};

// Where the rows of a tensor begin, counted through all of its leading dimensions.
struct GatherQmvRows {
  uint32_t dims;
  uint32_t sizes[kMaxRowDims];
  uint32_t padding;
  int64_t strides[kMaxRowDims];
};

// scales or biases, [E, N, K / group_size]
struct GatherQmvGroups {
  int64_t expert_stride, row_stride, stride;
  uint32_t dtype;
  uint32_t padding;
};

struct GatherQmvParams {
  uint32_t pairs, N, K, E;
  uint32_t top_k;
  uint32_t bits;
  uint32_t group_shift;  // log2 of group_size
  uint32_t dtype;        // of x and the output
  uint32_t long_indices;
  uint32_t wide_w;  // rows of w may be read in vectors: K is a multiple of 32, and all of them are aligned
  uint32_t wide_x;  // rows of x may be read in vectors of 16 bytes
  uint32_t padding;
  int64_t w_expert_stride, w_row_stride, w_stride;
  int64_t x_stride;
  GatherQmvGroups scales, biases;
  GatherQmvRows x_rows, index_rows;
};

// Up to kTilePairs pairs of one expert: those at sorted[first] to sorted[first + count - 1].
struct GatherQmvTile {
  uint32_t expert;  // or E for pairs without an expert, E + 1 for pairs whose index is out of range
  uint32_t first, count;
  uint32_t padding;
};

#endif
