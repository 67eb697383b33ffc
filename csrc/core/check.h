// The one checking vocabulary. A check looks at names, sizes, dtypes and which tensors go together, never at data,
// and is a template on the size type: int64_t for real tensors, c10::SymInt while a graph is traced.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/Exception.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace tmo {

// Comparisons that become SymBool expressions under tracing, so that a check adds one fact to the graph's
// assumptions instead of fixing the sizes that it reads.
inline bool eq(int64_t a, int64_t b) { return a == b; }
inline bool le(int64_t a, int64_t b) { return a <= b; }
inline bool either(bool a, bool b) { return a || b; }
inline bool both(bool a, bool b) { return a && b; }
inline c10::SymBool eq(const c10::SymInt& a, const c10::SymInt& b) { return a.sym_eq(b); }
inline c10::SymBool le(const c10::SymInt& a, const c10::SymInt& b) { return a.sym_le(b); }
inline c10::SymBool either(const c10::SymBool& a, const c10::SymBool& b) { return a.sym_or(b); }
inline c10::SymBool both(const c10::SymBool& a, const c10::SymBool& b) { return a.sym_and(b); }

// holds: the condition is required. For a size that is known only at run time it becomes an assertion of the graph.
inline bool holds(bool condition) { return condition; }
inline bool holds(const c10::SymBool& condition) { return condition.expect_true(__FILE__, __LINE__); }

// known: the condition is certain now; a size that is known only at run time counts as "no".
inline bool known(bool condition) { return condition; }
inline bool known(const c10::SymBool& condition) { return condition.guard_or_false(__FILE__, __LINE__); }

// What a sentence shows for a value: for a size that is a symbol while a graph is traced, the number that it stands for
// in this trace. Asking for it ties the graph to that number, which is harmless: the sentence ends the trace.
template <class T>
const T& shown(const T& value) {
  return value;
}
inline c10::SymInt shown(const c10::SymInt& size) {
  const bool has_number = size.is_symbolic() && size.toSymNode()->has_hint();
  return has_number ? c10::SymInt(size.guard_int(__FILE__, __LINE__)) : size;
}
inline std::string shown(c10::ArrayRef<c10::SymInt> sizes) {
  std::vector<c10::SymInt> numbers;
  for (const c10::SymInt& size : sizes) numbers.push_back(shown(size));
  return c10::str(c10::ArrayRef<c10::SymInt>(numbers));
}

template <class... Parts>
std::string sentence(const Parts&... parts) {
  return c10::str(shown(parts)...);
}

#define TMO_CHECK(condition, ...) TORCH_CHECK_VALUE(::tmo::holds(condition), ::tmo::sentence(__VA_ARGS__))

template <class Int>
c10::ArrayRef<Int> sizes_of(const at::Tensor& tensor) {
  if constexpr (std::is_same_v<Int, c10::SymInt>) {
    return tensor.sym_sizes();
  } else {
    return tensor.sizes();
  }
}

template <class Int>
c10::ArrayRef<Int> strides_of(const at::Tensor& tensor) {
  if constexpr (std::is_same_v<Int, c10::SymInt>) {
    return tensor.sym_strides();
  } else {
    return tensor.strides();
  }
}

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
