// The vocabulary of sizes.h for sizes that are symbols, as they are while a graph is traced.
#pragma once

#include <c10/core/SymInt.h>
#include <c10/util/StringUtil.h>

#include <string>
#include <vector>

#include "sizes.h"

namespace tmo {

// Comparisons become SymBool expressions, so that a check adds one fact to the graph's assumptions instead of fixing
// the sizes that it reads.
inline c10::SymBool eq(const c10::SymInt& a, const c10::SymInt& b) { return a.sym_eq(b); }
inline c10::SymBool le(const c10::SymInt& a, const c10::SymInt& b) { return a.sym_le(b); }
inline c10::SymBool either(const c10::SymBool& a, const c10::SymBool& b) { return a.sym_or(b); }
inline c10::SymBool both(const c10::SymBool& a, const c10::SymBool& b) { return a.sym_and(b); }

inline bool holds(const c10::SymBool& condition) { return condition.expect_true(__FILE__, __LINE__); }
inline bool known(const c10::SymBool& condition) { return condition.guard_or_false(__FILE__, __LINE__); }

// The number that a symbol stands for in this trace. Asking for it ties the graph to that number, which is harmless:
// the sentence ends the trace.
inline c10::SymInt shown(const c10::SymInt& size) {
  const bool has_number = size.is_symbolic() && size.toSymNode()->has_hint();
  return has_number ? c10::SymInt(size.guard_int(__FILE__, __LINE__)) : size;
}
inline std::string shown(c10::ArrayRef<c10::SymInt> sizes) {
  std::vector<c10::SymInt> numbers;
  for (const c10::SymInt& size : sizes) numbers.push_back(shown(size));
  return c10::str(c10::ArrayRef<c10::SymInt>(numbers));
}

template <>
inline c10::ArrayRef<c10::SymInt> sizes_of(const at::Tensor& tensor) {
  return tensor.sym_sizes();
}
template <>
inline c10::ArrayRef<c10::SymInt> strides_of(const at::Tensor& tensor) {
  return tensor.sym_strides();
}

}  // namespace tmo
