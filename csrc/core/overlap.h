// Whether two tensors share a byte of memory: exact, for any strides, and cheap unless they are views of one storage
// whose byte ranges interleave.
#pragma once

#include <ATen/core/Tensor.h>

namespace tmo {

// False when either has symbolic sizes: there is no memory yet.
bool overlaps(const at::Tensor& a, const at::Tensor& b);

// Whether two elements of one tensor share memory because a dimension of more than one element has stride 0.
bool repeats_elements(const at::Tensor& tensor);

}  // namespace tmo
