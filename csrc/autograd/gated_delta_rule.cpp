#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels.h"

namespace tmo::autograd {
namespace {

using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, at::Tensor&);

const c10::TypedOperatorHandle<Signature>& op() {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("metal::gated_delta_rule", "").typed<Signature>();
  return handle;
}

struct NotDifferentiable : torch::autograd::Function<NotDifferentiable> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, c10::DispatchKeySet keys,
                                                const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                const at::Tensor& g, const at::Tensor& beta, at::Tensor state) {
    at::AutoDispatchBelowAutograd guard;
    at::Tensor y = op().redispatch(keys & c10::after_autograd_keyset, q, k, v, g, beta, state);
    context->mark_dirty({state});
    return {y, state};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "derivative for metal::gated_delta_rule is not implemented");
  }
};

}  // namespace

at::Tensor gated_delta_rule(c10::DispatchKeySet keys, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& g, const at::Tensor& beta, at::Tensor& state) {
  if (torch::autograd::compute_requires_grad(q, k, v, g, beta, state)) {
    torch::autograd::check_inplace(state, true);  // before anything is mutated
    return NotDifferentiable::apply(keys, q, k, v, g, beta, state)[0];
  }
  at::AutoDispatchBelowAutograd guard;
  return op().redispatch(keys & c10::after_autograd_keyset, q, k, v, g, beta, state);
}

at::Tensor gated_delta_rule_mutating(c10::DispatchKeySet keys, const at::Tensor& q, const at::Tensor& k,
                                     const at::Tensor& v, const at::Tensor& g, const at::Tensor& beta,
                                     at::Tensor& state) {
  at::Tensor y;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    y = op().redispatch(keys & c10::after_ADInplaceOrView_keyset, q, k, v, g, beta, state);
  }
  torch::autograd::increment_version(state);
  return y;
}

}  // namespace tmo::autograd
