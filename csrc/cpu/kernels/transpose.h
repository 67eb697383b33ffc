// Transposes of small float32 matrices.
#pragma once

#include "simd.h"

namespace tmo::cpu::TMO_ISA {

// to[c, r] = from[r, c], in blocks of 4 x 4, which every instruction set can shuffle.
inline void transpose(int64_t rows, int64_t columns, const float* from, int64_t from_stride, float* to,
                      int64_t to_stride) {
  using f32x4 = float __attribute__((vector_size(16)));
  const int64_t whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
  for (int64_t r = 0; r < whole_rows; r += 4) {
    for (int64_t c = 0; c < whole_columns; c += 4) {
      const float* const at = from + r * from_stride + c;
      const f32x4 a = load_raw<f32x4>(at), b = load_raw<f32x4>(at + from_stride);
      const f32x4 d = load_raw<f32x4>(at + 2 * from_stride), e = load_raw<f32x4>(at + 3 * from_stride);
      const f32x4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                  ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const f32x4 de_low = __builtin_shufflevector(d, e, 0, 4, 1, 5),
                  de_high = __builtin_shufflevector(d, e, 2, 6, 3, 7);
      float* const out = to + c * to_stride + r;
      store_raw(out, __builtin_shufflevector(ab_low, de_low, 0, 1, 4, 5));
      store_raw(out + to_stride, __builtin_shufflevector(ab_low, de_low, 2, 3, 6, 7));
      store_raw(out + 2 * to_stride, __builtin_shufflevector(ab_high, de_high, 0, 1, 4, 5));
      store_raw(out + 3 * to_stride, __builtin_shufflevector(ab_high, de_high, 2, 3, 6, 7));
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
      to[c * to_stride + r] = from[r * from_stride + c];
  }
}

}  // namespace tmo::cpu::TMO_ISA
