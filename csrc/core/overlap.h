// Whether tensors share a byte of memory: exact, for any strides, and cheap unless elements of one memory interleave.
#pragma once

#include <ATen/core/Tensor.h>

namespace tmo {

// False when either has symbolic sizes: there is no memory yet. On the CPU addresses are compared, so that two storages
// over the same memory are seen; elsewhere only views of one storage can overlap.
bool overlaps(const at::Tensor& a, const at::Tensor& b);

// Whether two elements of one tensor share memory: stride 0, or rows that overlap as windows do.
bool repeats_elements(const at::Tensor& tensor);

}  // namespace tmo
