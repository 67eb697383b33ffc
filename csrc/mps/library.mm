// The Metal kernels behind torch's dispatcher.

#include <torch/library.h>

#include "../core/schemas.h"
#include "ops.h"

TORCH_LIBRARY_IMPL(metal, MPS, m) {
  if (!tmo::conflict().empty()) return;
  m.impl("sdpa", &tmo::mps::sdpa);
  m.impl("gather_qmv", &tmo::mps::gather_qmv);
  m.impl("gated_delta_rule", &tmo::mps::gated_delta_rule);
}
