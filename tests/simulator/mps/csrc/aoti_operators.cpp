// Operators that ExecuTorch's Metal backend lets generated code call, beyond the matrix products of aoti.cpp:
// functions of torch/csrc/inductor/aoti_torch/generated/c_shim_mps.h, which only libtorch for macOS has.
#include <ATen/ops/_scaled_dot_product_attention_math_for_mps.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/topk.h>
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

AOTITorchError aoti_torch_mps_convolution(AtenTensorHandle input, AtenTensorHandle weight, AtenTensorHandle* bias,
                                          const int64_t* stride, int64_t stride_size, const int64_t* padding,
                                          int64_t padding_size, const int64_t* dilation, int64_t dilation_size,
                                          int32_t transposed, const int64_t* output_padding,
                                          int64_t output_padding_size, int64_t groups, AtenTensorHandle* result) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    const auto list = [](const int64_t* values, int64_t size) {
      return at::IntArrayRef(values, static_cast<size_t>(size));
    };
    *result = new_tensor_handle(at::convolution(tensor(input), tensor(weight), tensor(bias), list(stride, stride_size),
                                                list(padding, padding_size), list(dilation, dilation_size), transposed,
                                                list(output_padding, output_padding_size), groups));
  });
}

AOTITorchError aoti_torch_mps_topk(AtenTensorHandle self, int64_t k, int64_t dim, int32_t largest, int32_t sorted,
                                   AtenTensorHandle* values, AtenTensorHandle* indices) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    auto [value, index] = at::topk(tensor(self), k, dim, largest, sorted);
    *values = new_tensor_handle(std::move(value));
    *indices = new_tensor_handle(std::move(index));
  });
}

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
