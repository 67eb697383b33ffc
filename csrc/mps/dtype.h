// The dtype of a tensor as the shaders know it.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/common/dtype.h"

namespace tmo::mps {

inline uint32_t dtype_tag(const at::Tensor& tensor) {
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
