// How a Metal kernel is run. launch.mm is the only file that knows torch's side of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

namespace tmo::mps {

struct Size {
  uint64_t x = 1, y = 1, z = 1;
};

// One argument of a kernel: a tensor, bound from its first element on, or bytes that are copied (at most 4 KB). It
// refers to the caller's value, so it lives only within the call of launch. For a tensor that is undefined,
// an optional one that was not given, or empty, something else is bound, which the kernel must not read.
class Arg {
 public:
  Arg(const at::Tensor& tensor) : tensor_(&tensor) {}

  template <class T, class = std::enable_if_t<std::is_trivially_copyable_v<T>>>
  Arg(const T& value) : bytes_(&value), size_(sizeof(T)) {}

  const at::Tensor* tensor() const { return tensor_; }
  const void* bytes() const { return bytes_; }
  size_t size() const { return size_; }

 private:
  const at::Tensor* tensor_ = nullptr;
  const void* bytes_ = nullptr;
  size_t size_ = 0;
};

// Enqueues `groups` threadgroups of `group` threads each, on torch's stream, after everything that was enqueued before.
// `library` is the name of a file in kernels/ without .metal; arguments take the buffer indices 0, 1, 2, ... in order.
// An empty grid runs nothing. A group larger than the compiled kernel allows is an error: Metal would drop the launch.
void launch(const char* library, const std::string& kernel, Size groups, Size group, std::initializer_list<Arg> args);

// The number of cores of the GPU: how many threadgroups it takes to fill it.
uint64_t gpu_cores();

}  // namespace tmo::mps
