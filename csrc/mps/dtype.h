#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/common/dtype.h"

namespace tmo::mps {

// The kernels' tag for the dtype of a tensor that has passed its op's check.
inline uint32_t dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return kFloat16;
    case at::kBFloat16:
      return kBFloat16;
    case at::kBool:
      return kBool;
    default:
      return kFloat32;
  }
}

}  // namespace tmo::mps
