// Torch's attention for the code that AOTInductor generates, in both versions of its C function: beside aoti.cpp, what
// ExecuTorch's Metal backend lets that code call.
#include <ATen/ops/_scaled_dot_product_attention_math_for_mps.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_mps.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

using torch::aot_inductor::new_tensor_handle;
using torch::aot_inductor::tensor_handle_to_tensor_pointer;

namespace {

const at::Tensor& tensor(AtenTensorHandle handle) { return *tensor_handle_to_tensor_pointer(handle); }

std::optional<at::Tensor> tensor(AtenTensorHandle* handle) {
  return handle ? std::optional(tensor(*handle)) : std::nullopt;
}

std::tuple<at::Tensor, at::Tensor> attention(AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value,
                                             AtenTensorHandle* mask, double dropout, int32_t causal,
                                             AtenTensorHandle* dropout_mask, const double* scale, int32_t gqa) {
  return at::_scaled_dot_product_attention_math_for_mps(tensor(query), tensor(key), tensor(value), tensor(mask),
                                                        dropout, causal, tensor(dropout_mask),
                                                        scale ? std::optional(*scale) : std::nullopt, gqa);
}

}  // namespace

AOTITorchError aoti_torch_mps__scaled_dot_product_attention_math_for_mps(AtenTensorHandle query, AtenTensorHandle key,
                                                                         AtenTensorHandle value, AtenTensorHandle* mask,
                                                                         double dropout, int32_t causal,
                                                                         AtenTensorHandle* dropout_mask, double* scale,
                                                                         AtenTensorHandle* result,
                                                                         AtenTensorHandle* weights) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    auto [y, w] = attention(query, key, value, mask, dropout, causal, dropout_mask, scale, false);
    *result = new_tensor_handle(std::move(y));
    *weights = new_tensor_handle(std::move(w));
  });
}

AOTITorchError aoti_torch_mps__scaled_dot_product_attention_math_for_mps_v2(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle* mask, double dropout,
    int32_t causal, AtenTensorHandle* dropout_mask, double* scale, int32_t enable_gqa, AtenTensorHandle* result,
    AtenTensorHandle* weights) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    auto [y, w] = attention(query, key, value, mask, dropout, causal, dropout_mask, scale, enable_gqa);
    *result = new_tensor_handle(std::move(y));
    *weights = new_tensor_handle(std::move(w));
  });
}
