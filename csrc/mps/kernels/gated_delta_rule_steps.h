// Steps of q, k, v, g and beta, copied to threadgroup memory as float32: each element is loaded and converted once a
// threadgroup, whatever its strides and dtype.
#ifndef TMO_MPS_GATED_DELTA_RULE_STEPS_H
#define TMO_MPS_GATED_DELTA_RULE_STEPS_H

#include <metal_stdlib>

#include "common/any_float.h"

// What is copied: `steps` rows of `width` elements.
struct Block {
  uint steps, width;
  int64_t offset;  // of the first element
  int64_t step_stride, channel_stride;
};

// Rows [0, kSteps) of to[step * kStride + channel], up to channel `padded`; what is not in the block becomes `fill`.
// kWidth is at least `padded`, a power of two that divides the number of threads or is divided by it.
template <uint kSteps, uint kWidth, uint kStride, uint kThreads, typename T>
void copy_block_of(device const T* from, Block block, uint padded, float fill, threadgroup float* to,
                   uint thread_index) {
  constexpr uint kRowsAtOnce = kThreads > kWidth ? kThreads / kWidth : 1;
  const uint first = thread_index / kWidth;
  for (uint c = thread_index % kWidth; c < padded; c += kThreads) {
    int64_t index = block.offset + c * block.channel_stride + first * block.step_stride;
    for (uint t = first; t < kSteps; t += kRowsAtOnce, index += kRowsAtOnce * block.step_stride) {
      to[t * kStride + c] = t < block.steps && c < block.width ? float(from[index]) : fill;
    }
  }
}

template <uint kSteps, uint kWidth, uint kStride, uint kThreads>
void copy_block(device const void* from, uint dtype, Block block, uint padded, float fill, threadgroup float* to,
                uint thread_index) {
  if (dtype == kFloat16) {
    copy_block_of<kSteps, kWidth, kStride, kThreads>(static_cast<device const half*>(from), block, padded, fill, to,
                                                     thread_index);
  } else if (dtype == kBFloat16) {
    copy_block_of<kSteps, kWidth, kStride, kThreads>(static_cast<device const bfloat*>(from), block, padded, fill, to,
                                                     thread_index);
  } else {
    copy_block_of<kSteps, kWidth, kStride, kThreads>(static_cast<device const float*>(from), block, padded, fill, to,
                                                     thread_index);
  }
}

#endif
