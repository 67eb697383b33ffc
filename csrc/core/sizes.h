// Comparisons and text of sizes that are numbers. symbols.h adds those that are known only while a graph is run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tmo {

inline bool eq(int64_t a, int64_t b) { return a == b; }
inline bool le(int64_t a, int64_t b) { return a <= b; }
inline bool either(bool a, bool b) { return a || b; }
inline bool both(bool a, bool b) { return a && b; }

// holds: the condition is required. For a size that is known only at run time it becomes an assertion of the graph.
inline bool holds(bool condition) { return condition; }

// known: the condition is certain now; a size that is known only at run time counts as "no".
inline bool known(bool condition) { return condition; }

// What a sentence shows for a value.
template <class T>
const T& shown(const T& value) {
  return value;
}

template <class Int>
c10::ArrayRef<Int> sizes_of(const at::Tensor& tensor) {
  return tensor.sizes();
}

template <class Int>
c10::ArrayRef<Int> strides_of(const at::Tensor& tensor) {
  return tensor.strides();
}

}  // namespace tmo
