// What a C shim needs: handles to tensors and back, and the op as the dispatcher knows it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

#include <optional>

namespace tmo::shim {

inline at::Tensor& tensor(AtenTensorHandle handle) {
  return *torch::aot_inductor::tensor_handle_to_tensor_pointer(handle);
}

inline std::optional<at::Tensor> optional_tensor(const AtenTensorHandle* handle) {
  return handle ? std::optional<at::Tensor>(tensor(*handle)) : std::nullopt;
}

template <class T>
std::optional<T> optional_value(const T* value) {
  return value ? std::optional<T>(*value) : std::nullopt;
}

template <class Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Hands a result to the caller, who owns the handle.
inline void give(at::Tensor result, AtenTensorHandle* handle) {
  *handle = torch::aot_inductor::new_tensor_handle(std::move(result));
}

}  // namespace tmo::shim

// Defines aoti_torch_cpu_<op> and aoti_torch_mps_<op> with one parameter list and one body: the dispatcher looks at the
// tensors. An exception becomes an error code, and its text is kept for torch_exception_get_what().
#define TMO_DEFINE_SHIMS(op, parameters, ...)                                  \
  extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_##op parameters { \
    AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(__VA_ARGS__)                    \
  }                                                                            \
                                                                               \
  extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mps_##op parameters { \
    AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(__VA_ARGS__)                    \
  }
