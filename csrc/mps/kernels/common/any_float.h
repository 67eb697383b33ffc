// Reads and writes tensors of any float dtype as float32. The dtype is the same for a whole launch, so that the branch
// is uniform. Indices are in elements.
#ifndef TMO_MPS_ANY_FLOAT_H
#define TMO_MPS_ANY_FLOAT_H

#include <metal_stdlib>

#include "dtype.h"

inline float load_float(device const void* base, int64_t index, uint32_t dtype) {
  if (dtype == kFloat16) return float(static_cast<device const half*>(base)[index]);
  if (dtype == kBFloat16) return float(static_cast<device const bfloat*>(base)[index]);
  return static_cast<device const float*>(base)[index];
}

inline void store_float(device void* base, int64_t index, uint32_t dtype, float value) {
  if (dtype == kFloat16) {
    static_cast<device half*>(base)[index] = half(value);
  } else if (dtype == kBFloat16) {
    static_cast<device bfloat*>(base)[index] = bfloat(value);
  } else {
    static_cast<device float*>(base)[index] = value;
  }
}

#endif
