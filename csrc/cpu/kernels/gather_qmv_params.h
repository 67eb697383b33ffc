// What gather_qmv's host code tells its kernel. Strides are in elements.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace tmo::cpu {

// scales or biases, [E, N, K/G]
struct GroupParameters {
  const void* data;
  Dtype dtype;
  int64_t expert_stride, row_stride, stride;
};

struct GatherQmvParams {
  int64_t N, K, group_size, bits;
  // packed weights, [E, N, K*bits/8]; w_end is where the last of them ends
  const uint8_t *w, *w_end;
  int64_t w_expert_stride, w_row_stride, w_stride;
  GroupParameters scales, biases;
  // x and the output have one dtype; row r of x begins at x_offsets[r]; row p of the output, [P, N], is for row
  // p / pairs_per_row of x
  const void* x;
  Dtype dtype;
  int64_t x_stride;
  const int64_t* x_offsets;
  int64_t pairs_per_row;
  void* out;
  // the rows of the output, sorted by expert
  const int64_t* pairs;
};

// Rows of the output that share an expert: pairs[first] to pairs[first + count - 1].
struct GatherQmvTile {
  int64_t expert, first, count;
};

// A tile of up to kFewRows rows is multiplied as the weights are unpacked; a larger one, of up to kManyRows, goes
// through dequantised blocks of kWeightRows x kWeightColumns.
constexpr int64_t kFewRows = 8, kManyRows = 64, kWeightRows = 48, kWeightColumns = 256;

}  // namespace tmo::cpu
