// Sums and transpositions across the lanes of kLanes vectors.
#pragma once

#include "simd.h"

namespace tmo::cpu::TMO_ISA {

#if TMO_LANES == 4
#define TMO_SHUFFLE(a, b, lane) __builtin_shufflevector(a, b, lane(0), lane(1), lane(2), lane(3))
#elif TMO_LANES == 8
#define TMO_SHUFFLE(a, b, lane) \
  __builtin_shufflevector(a, b, lane(0), lane(1), lane(2), lane(3), lane(4), lane(5), lane(6), lane(7))
#else
#define TMO_SHUFFLE(a, b, lane)                                                                                  \
  __builtin_shufflevector(a, b, lane(0), lane(1), lane(2), lane(3), lane(4), lane(5), lane(6), lane(7), lane(8), \
                          lane(9), lane(10), lane(11), lane(12), lane(13), lane(14), lane(15))
#endif

// Of two vectors, as 2 x 2 blocks of kDistance lanes, the upper row of the transposed blocks: the lanes of a whose
// number has no kDistance bit, each followed by those of b.
template <int kDistance>
constexpr int upper_lane(int i) {
  return i & kDistance ? kLanes + i - kDistance : i;
}
template <int kDistance>
constexpr int lower_lane(int i) {
  return i & kDistance ? kLanes + i : i + kDistance;
}

template <int kDistance>
TMO_INLINE f32v upper(f32v a, f32v b) {
  return TMO_SHUFFLE(a, b, upper_lane<kDistance>);
}
template <int kDistance>
TMO_INLINE f32v lower(f32v a, f32v b) {
  return TMO_SHUFFLE(a, b, lower_lane<kDistance>);
}

// rows[i][j] becomes rows[j][i].
template <int kDistance = 1>
TMO_INLINE void transpose(f32v (&rows)[kLanes]) {
  if constexpr (kDistance < kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & kDistance) continue;
      const f32v a = rows[i], b = rows[i + kDistance];
      rows[i] = upper<kDistance>(a, b);
      rows[i + kDistance] = lower<kDistance>(a, b);
    }
    transpose<2 * kDistance>(rows);
  }
}

// Lane i of the result is the sum of the lanes of rows[i], by a fixed tree.
template <int kDistance = 1>
TMO_INLINE f32v sum_each(f32v (&rows)[kLanes]) {
  if constexpr (kDistance < kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i += 2 * kDistance) {
      const f32v a = rows[i], b = rows[i + kDistance];
      rows[i] = upper<kDistance>(a, b) + lower<kDistance>(a, b);
    }
    return sum_each<2 * kDistance>(rows);
  } else {
    return rows[0];
  }
}

}  // namespace tmo::cpu::TMO_ISA
