// From the C functions that a .pte calls to the ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdio>
#include <exception>
#include <optional>

namespace tmo::executorch {

inline std::optional<at::Tensor> optional_tensor(const AtenTensorHandle* handle) {
  return handle ? std::optional<at::Tensor>(at::Tensor::borrow(*handle)) : std::nullopt;
}

template <class T>
std::optional<T> optional_value(const T* value) {
  return value ? std::optional<T>(*value) : std::nullopt;
}

// The result of `compute` goes to the caller. An exception becomes an error code, and its sentence goes to the log.
template <class Compute>
AOTITorchError give(AtenTensorHandle* result, const Compute& compute) {
  try {
    *result = compute().release();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace tmo::executorch

#define TMO_SHIM extern "C" __attribute__((visibility("default"))) AOTITorchError
