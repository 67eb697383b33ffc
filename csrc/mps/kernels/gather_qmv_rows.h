// Finds and reads the rows of x, and which expert a pair wants.
#ifndef TMO_MPS_GATHER_QMV_ROWS_H
#define TMO_MPS_GATHER_QMV_ROWS_H

#include <metal_stdlib>

#include "common/any_float.h"
#include "gather_qmv_params.h"

inline int64_t row_offset(constant GatherQmvRows& rows, uint row) {
  int64_t offset = 0;
  for (uint d = rows.dims - 1; d > 0; d--) {
    const uint size = rows.sizes[d];
    offset += int64_t(row % size) * rows.strides[d];
    row /= size;
  }
  return offset + int64_t(row) * rows.strides[0];
}

// The pair's expert; E for the index -1, and E + 1 for any other that is no expert's.
inline uint read_expert(device const void* indices, constant GatherQmvParams& p, uint pair) {
  const int64_t offset = row_offset(p.index_rows, pair);
  const int64_t index = p.long_indices ? static_cast<device const int64_t*>(indices)[offset]
                                       : int64_t(static_cast<device const int*>(indices)[offset]);
  if (index == -1) return p.E;
  return index >= 0 && index < int64_t(p.E) ? uint(index) : p.E + 1;
}

// What the output of a pair without an expert is filled with.
inline float no_expert_value(uint expert, uint E) { return expert == E ? 0.0f : NAN; }

// kCount consecutive elements of x as float32. A bfloat is widened by hand, which costs one operation on any chip.
template <int kCount>
inline void load_x(device const void* x, constant GatherQmvParams& p, int64_t offset, thread float* values) {
  if (!p.wide_x) {
    for (int i = 0; i < kCount; i++) values[i] = load_float(x, offset + i * p.x_stride, p.dtype);
  } else if (p.dtype == kFloat32) {
    device const float4* from = reinterpret_cast<device const float4*>(static_cast<device const float*>(x) + offset);
#pragma unroll
    for (int i = 0; i < kCount / 4; i++) {
      const float4 four = from[i];
      values[4 * i] = four.x, values[4 * i + 1] = four.y, values[4 * i + 2] = four.z, values[4 * i + 3] = four.w;
    }
  } else {
    device const uint4* from = reinterpret_cast<device const uint4*>(static_cast<device const ushort*>(x) + offset);
    const bool is_half = p.dtype == kFloat16;
#pragma unroll
    for (int i = 0; i < kCount / 8; i++) {
      const uint4 words = from[i];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const half2 two = as_type<half2>(words[j]);
        values[8 * i + 2 * j] = is_half ? float(two.x) : as_type<float>(words[j] << 16);
        values[8 * i + 2 * j + 1] = is_half ? float(two.y) : as_type<float>(words[j] & 0xffff0000u);
      }
    }
  }
}

#endif
