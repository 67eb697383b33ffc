#pragma once

#include <ATen/core/Tensor.h>

namespace tmo::mps {

// Whether each row of the last dimension starts at a multiple of `elements`. A Metal buffer starts at one.
inline bool rows_start_at_multiples(const at::Tensor& tensor, int64_t elements) {
  bool aligned = tensor.storage_offset() % elements == 0;
  for (int64_t d = 0; d + 1 < tensor.dim(); ++d) aligned &= tensor.size(d) == 1 || tensor.stride(d) % elements == 0;
  return aligned;
}

}  // namespace tmo::mps
