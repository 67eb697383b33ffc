// How packed weights become vectors of float32, without a shuffle and almost without a shift.
//
// A weight is masked out of a 32-bit word where it stands and converted there, which gives q * 2^shift; what it is
// multiplied with has been multiplied by 2^-shift beforehand (an idea of MLX's quantized.h). Weights come in blocks of
// a few vectors, in the order that is cheapest, and the vectors that they meet have been brought into the same order.
//
// A format has: kMiddle, the middle of the range of q; kWeights, kBytes of a block; kSteps, its vectors; source(step,
// lane), which weight of the block that lane holds; shift(step, lane), and factors(step) = 2^shift as a vector;
// unpack<kFrom>(bytes, q), the weights less kFrom, which may read kSlack bytes beyond the block.
#pragma once

#include "simd.h"

namespace tmo::cpu::TMO_ISA {

TMO_INLINE f32v to_float(u32v integers) { return __builtin_convertvector(bits_as<i32v>(integers), f32v); }

// 2, 4 and 8 bits: each lane has a word of 32 / kBits consecutive weights; step i takes weight i of every word.
template <int kBits>
struct WordFormat {
  static constexpr uint32_t kMiddle = 1u << (kBits - 1);
  static constexpr int kSteps = 32 / kBits, kWeights = kLanes * kSteps, kBytes = kLanes * 4, kSlack = 0;

  static constexpr int source(int step, int lane) { return lane * kSteps + step; }
  static constexpr int shift(int step, int) { return step % (kSteps / 2) * kBits; }
  static TMO_INLINE f32v factors(int step) { return splat(float(1 << shift(step, 0))); }

  template <uint32_t kFrom>
  static TMO_INLINE void unpack(const uint8_t* bytes, f32v (&q)[kSteps]) {
    const u32v low = load_raw<u32v>(bytes), high = low >> 16;
#pragma GCC unroll 16
    for (int i = 0; i < kSteps; ++i) {
      const uint32_t mask = ((1u << kBits) - 1) << shift(i, 0);
      q[i] = to_float(((i < kSteps / 2 ? low : high) & mask) - (kFrom << shift(i, 0)));
    }
  }
};

// 3, 5 and 6 bits: 16 consecutive weights a block, in order. Four of them at a time are inside 32 bits that begin at a
// byte.
template <int kBits>
struct StreamFormat {
  static constexpr uint32_t kMiddle = 1u << (kBits - 1);
  static constexpr int kWeights = 16, kSteps = kWeights / kLanes, kBytes = 2 * kBits, kSlack = 2;

  static constexpr int source(int step, int lane) { return step * kLanes + lane; }
  static constexpr int shift(int step, int lane) {
    const int weight = source(step, lane);
    return weight / 4 * 4 * kBits % 8 + weight % 4 * kBits;
  }

  template <int... kLane>
  static TMO_INLINE f32v factors(int step, std::integer_sequence<int, kLane...>) {
    return f32v{float(1 << shift(step, kLane))...};
  }
  static TMO_INLINE f32v factors(int step) { return factors(step, std::make_integer_sequence<int, kLanes>()); }

  static TMO_INLINE uint32_t four(const uint8_t* bytes, int weight) {
    return load_raw<uint32_t>(bytes + weight / 4 * 4 * kBits / 8);
  }

  template <uint32_t kFrom, int kStep, int... kLane>
  static TMO_INLINE f32v unpack_step(const uint8_t* bytes, std::integer_sequence<int, kLane...>) {
    const u32v words{four(bytes, source(kStep, kLane))...};
    const u32v masks{(((1u << kBits) - 1) << shift(kStep, kLane))...};
    const u32v from{(kFrom << shift(kStep, kLane))...};
    return to_float((words & masks) - from);
  }

  template <uint32_t kFrom, int... kStep>
  static TMO_INLINE void unpack_steps(const uint8_t* bytes, f32v (&q)[kSteps], std::integer_sequence<int, kStep...>) {
    ((q[kStep] = unpack_step<kFrom, kStep>(bytes, std::make_integer_sequence<int, kLanes>())), ...);
  }

  template <uint32_t kFrom>
  static TMO_INLINE void unpack(const uint8_t* bytes, f32v (&q)[kSteps]) {
    unpack_steps<kFrom>(bytes, q, std::make_integer_sequence<int, kSteps>());
  }
};

template <int kBits>
using Format = std::conditional_t<32 % kBits == 0, WordFormat<kBits>, StreamFormat<kBits>>;

// Brings values, one a weight, into the order of the format and takes the shift out of them. blocks * kWeights values;
// element i of the result goes to to[i * stride].
template <class F>
void arrange(const float* values, int64_t blocks, float* to, int64_t stride) {
  for (int64_t b = 0; b < blocks; ++b) {
    for (int step = 0; step < F::kSteps; ++step) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float factor = 1.0f / float(1 << F::shift(step, lane));
        to[(step * kLanes + lane) * stride] = values[F::source(step, lane)] * factor;
      }
    }
    values += F::kWeights;
    to += F::kWeights * stride;
  }
}

// values[0] for the lanes of the first group in a block, values[1] for those of the second, and so on. Reads a vector.
template <int kGroups, int... kLane>
TMO_INLINE f32v spread(const float* values, std::integer_sequence<int, kLane...>) {
  const f32v v = load(values);
  return __builtin_shufflevector(v, v, (kLane * kGroups / kLanes)...);
}
template <int kGroups>
TMO_INLINE f32v spread(const float* values) {
  if constexpr (kGroups <= 1) {
    return splat(*values);
  } else {
    return spread<kGroups>(values, std::make_integer_sequence<int, kLanes>());
  }
}

}  // namespace tmo::cpu::TMO_ISA
