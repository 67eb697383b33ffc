// The one checking vocabulary. A check looks at names, sizes, dtypes and which tensors go together, never at data,
// and is a template on the size type: int64_t for real tensors, c10::SymInt while a graph is traced.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <initializer_list>
#include <optional>
#include <string>

#ifdef TMO_EXECUTORCH  // nothing is traced there
#include "sizes.h"
#else
#include "symbols.h"
#endif

namespace tmo {

template <class... Parts>
std::string sentence(const Parts&... parts) {
  return c10::str(shown(parts)...);
}

#define TMO_CHECK(condition, ...) TORCH_CHECK_VALUE(::tmo::holds(condition), ::tmo::sentence(__VA_ARGS__))

// The size of a broadcast dimension; that a and b are equal or 1 is checked by the caller.
template <class Int>
Int broadcast_size(const Int& a, const Int& b) {
  return known(eq(a, Int(1))) ? b : a;
}

inline bool is_float(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
}

inline bool is_index(at::ScalarType dtype) { return dtype == at::kInt || dtype == at::kLong; }

// An argument with the name the user typed.
struct Named {
  const char* name;
  const at::Tensor& tensor;
};

inline void check_float(const char* op, const Named& arg) {
  TMO_CHECK(is_float(arg.tensor.scalar_type()), op, ": ", arg.name, " must be float32, float16 or bfloat16, got ",
            arg.tensor.scalar_type(), ". Convert it with .to() first.");
}

inline void check_same_dtype(const char* op, const Named& first, const Named& second) {
  TMO_CHECK(first.tensor.scalar_type() == second.tensor.scalar_type(), op, ": ", first.name, " and ", second.name,
            " must have one dtype, got ", first.tensor.scalar_type(), " and ", second.tensor.scalar_type(),
            ". Convert one with .to() first.");
}

inline void check_index(const char* op, const Named& arg) {
  TMO_CHECK(is_index(arg.tensor.scalar_type()), op, ": ", arg.name, " must be int32 or int64, got ",
            arg.tensor.scalar_type(), ". Convert it with .to(torch.int32) first.");
}

inline void check_same_device(const char* op, const Named& first, std::initializer_list<Named> others) {
  for (const Named& other : others) {
    TMO_CHECK(!other.tensor.defined() || other.tensor.device() == first.tensor.device(), op, ": ", other.name,
              " must be on the device of ", first.name, ", got ", other.tensor.device(), " and ", first.tensor.device(),
              ". Move it with .to() first.");
  }
}

// The tensor of an optional argument, or an undefined tensor, which check_same_device passes over.
inline at::Tensor value_or_undefined(const std::optional<at::Tensor>& tensor) { return tensor.value_or(at::Tensor()); }

}  // namespace tmo
