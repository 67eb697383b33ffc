// The dtypes of tensors that the kernels read as float32.
#pragma once

#include <cstdint>

namespace tmo::cpu {

enum class Dtype : uint8_t { f32, f16, bf16, boolean };

}  // namespace tmo::cpu
