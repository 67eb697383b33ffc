// The kernels above the backends that torch has no ready-made one for.
#pragma once

#include <ATen/core/Tensor.h>

namespace tmo::autograd {

// Key Autograd: backward, through y or through the state, raises "derivative for metal::gated_delta_rule is not
// implemented". torch's autogradNotImplementedFallback() sees only what an op returns, not a tensor that it mutates.
at::Tensor gated_delta_rule(c10::DispatchKeySet keys, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& g, const at::Tensor& beta, at::Tensor& state);

// Key ADInplaceOrView: counts the mutation of the state, so that backward of another op that saved it complains.
at::Tensor gated_delta_rule_mutating(c10::DispatchKeySet keys, const at::Tensor& q, const at::Tensor& k,
                                     const at::Tensor& v, const at::Tensor& g, const at::Tensor& beta,
                                     at::Tensor& state);

}  // namespace tmo::autograd
