#pragma once

#include <ATen/core/Tensor.h>

namespace simulator {

// A CPU tensor over the memory of one on mps, after everything that waits has run. Any other tensor is returned as it
// is.
at::Tensor on_host(const at::Tensor& tensor);

}  // namespace simulator
