// The two ops that ExecuTorch has kernels for, in place of them: built where TORCH_METAL_OPS_REPLACE is on.
#include "../mps/ops.h"
#include "shims.h"

using namespace tmo::executorch;

TMO_SHIM aoti_torch_mps_gather_qmv(AtenTensorHandle x, AtenTensorHandle w, AtenTensorHandle scales,
                                   AtenTensorHandle biases, AtenTensorHandle expert_indices, int64_t group_size,
                                   AtenTensorHandle* ret0) {
  return give(ret0, [&] {
    return tmo::mps::gather_qmv(at::Tensor::borrow(x), at::Tensor::borrow(w), at::Tensor::borrow(scales),
                                at::Tensor::borrow(biases), at::Tensor::borrow(expert_indices), group_size);
  });
}

TMO_SHIM aoti_torch_mps_gated_delta_rule(AtenTensorHandle q, AtenTensorHandle k, AtenTensorHandle v, AtenTensorHandle g,
                                         AtenTensorHandle beta, AtenTensorHandle state, AtenTensorHandle* ret0) {
  return give(ret0, [&] {
    at::Tensor mutated = at::Tensor::borrow(state);
    return tmo::mps::gated_delta_rule(at::Tensor::borrow(q), at::Tensor::borrow(k), at::Tensor::borrow(v),
                                      at::Tensor::borrow(g), at::Tensor::borrow(beta), mutated);
  });
}
