#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/dtype.h"

namespace tmo::cpu {

// The kernels' name for the dtype of a tensor that has passed its op's check.
inline Dtype dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return Dtype::f16;
    case at::kBFloat16:
      return Dtype::bf16;
    case at::kBool:
      return Dtype::boolean;
    default:
      return Dtype::f32;
  }
}

}  // namespace tmo::cpu
