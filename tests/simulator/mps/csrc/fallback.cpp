// Everything that has no kernel here runs on the CPU.
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_attention_math_for_mps.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <cmath>

#include "generator.h"

namespace simulator {

namespace {

using at::Tensor;
using std::optional;

// While it lives, the CPU draws the device's random numbers.
class RandomNumbers {
 public:
  RandomNumbers() : state_(cpu_.get_state()) { cpu_.set_state(device_.get_state()); }
  ~RandomNumbers() {
    device_.set_state(cpu_.get_state());
    cpu_.set_state(state_);
  }
  RandomNumbers(const RandomNumbers&) = delete;
  RandomNumbers& operator=(const RandomNumbers&) = delete;

 private:
  at::Generator cpu_ = at::globalContext().defaultGenerator(at::kCPU);
  at::Generator device_ = on_cpu(default_generator());
  Tensor state_;
};

// Arguments that are generators of the device become the CPU's. True if there was one.
bool replace_generators(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  bool any = false;
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    if (!stack[i].isGenerator()) continue;
    any = true;
    stack[i] = on_cpu(stack[i].toGenerator());
  }
  return any;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  TORCH_CHECK_NOT_IMPLEMENTED(name.rfind("aten::", 0) == 0, "Could not run '", name,
                              "' with arguments from the 'MPS' backend: it has no kernel for it.");
  optional<RandomNumbers> random;
  if (!replace_generators(op, *stack) && op.hasTag(at::Tag::nondeterministic_seeded)) random.emplace();
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

// torch's own kernels for the next ones choose by device, and know no such device as this.
Tensor convolution(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                   int64_t groups) {
  optional<Tensor> cpu_bias;
  if (bias && bias->defined()) cpu_bias = bias->cpu();
  return at::convolution(input.cpu(), weight.cpu(), cpu_bias, stride, padding, dilation, transposed, output_padding,
                         groups)
      .to(input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& input,
                                                        const Tensor& weight, at::IntArrayRef stride,
                                                        at::IntArrayRef padding, at::IntArrayRef dilation,
                                                        bool transposed, at::IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> wanted) {
  const std::vector<int64_t> bias_size{gradient.size(1)};
  auto [a, b, c] = at::convolution_backward(gradient.cpu(), input.cpu(), weight.cpu(), bias_size, stride, padding,
                                            dilation, transposed, output_padding, groups, wanted);
  const auto back = [&](const Tensor& t) { return t.defined() ? t.to(gradient.device()) : t; };
  return {back(a), back(b), back(c)};
}

// Torch for macOS computes attention by one operator of MPS, and generated code calls that one.
std::tuple<Tensor, Tensor> attention_for_mps(const Tensor& query, const Tensor& key, const Tensor& value,
                                             const optional<Tensor>& mask, double dropout, bool causal,
                                             const optional<Tensor>& dropout_mask, optional<double> scale, bool gqa) {
  return at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, dropout_mask, scale, gqa);
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& mask,
                 double dropout, bool causal, optional<double> scale, bool gqa) {
  optional<Tensor> added = mask;
  if (mask && mask->defined() && mask->scalar_type() == at::kBool) {
    added = at::zeros_symint(mask->sym_sizes(), query.options()).masked_fill(mask->logical_not(), -INFINITY);
  }
  const bool derivative =
      at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() || value.requires_grad());
  if (dropout == 0 && !derivative) {
    return std::get<0>(at::_scaled_dot_product_attention_math_for_mps(query, key, value, added, dropout, causal,
                                                                      std::nullopt, scale, gqa));
  }
  return std::get<0>(
      at::_scaled_dot_product_attention_math(query, key, value, added, dropout, causal, std::nullopt, scale, gqa));
}

}  // namespace

TORCH_LIBRARY_IMPL(_, MPS, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("scaled_dot_product_attention", &attention);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("_scaled_dot_product_attention_math_for_mps", &attention_for_mps);
}

// Its derivative is that of the operations that it is made of.
TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) { m.impl("scaled_dot_product_attention", &attention); }

}  // namespace simulator
