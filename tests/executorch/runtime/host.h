// What the files of the host share: tensors and memory as ExecuTorch's Metal runtime has them, and its one stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

using AOTITorchError = int32_t;
constexpr AOTITorchError kOk = 0, kInternal = 1, kInvalidArgument = 18, kNotImplemented = 16;
constexpr int32_t kCpu = 0, kMps = 13;

struct Tensor {
  void* data;
  std::vector<int64_t> sizes, strides;
  int32_t dtype;

  int64_t numel() const;
};
using TensorHandle = Tensor*;

size_t element_size(int32_t dtype);

// Whether an address is that of the first byte of a buffer of the GPU, as a key of the runtime's table of buffers is.
bool is_buffer(const void* address);

// Runs what was encoded, in order.
void synchronize();
