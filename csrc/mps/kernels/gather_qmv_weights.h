// Reads packed weights and makes them float32, almost without a shift and without a conversion.
//
// Weight i of a row has the bits [i * kBits, (i + 1) * kBits) of the row's stream of bytes. Where it ends within the
// first 23 bits of its 32-bit word it is masked there and put into the mantissa of 2^23; the others are taken, the same
// way, from the 32 bits that begin 16 bits later, one word more for all of them. So the float32 that comes out is
// 2^23 + q * 2^position, exactly, for a position that is known when the kernel is compiled.
//
// Multiplying by weights where they stand, with the power of two taken out of x, is an idea of MLX's quantized.h;
// numbers in the mantissa instead of a conversion one of Kim et al., "Who Says Elephants Can't Run", 2022.
#ifndef TMO_MPS_GATHER_QMV_WEIGHTS_H
#define TMO_MPS_GATHER_QMV_WEIGHTS_H

#include <metal_stdlib>

#include "common/any_float.h"
#include "gather_qmv_params.h"

// A run of weights that begins with a word. Its indices are constants wherever these functions are inlined.
template <int kBits>
struct PackedWeights {
  static constexpr uint mask() { return (1u << kBits) - 1u; }
  static constexpr uint middle() { return 1u << (kBits - 1); }
  static constexpr int bit(int i) { return i * kBits % 32; }
  static constexpr bool is_late(int i) { return bit(i) + kBits > 23; }
  static constexpr int position(int i) { return is_late(i) ? bit(i) - 16 : bit(i); }
  static constexpr float power(int i) { return float(1u << position(i)); }

  // 2^23 + q * 2^position
  static inline float in_mantissa(thread const uint* words, int i) {
    const int at = i * kBits / 32;
    uint word = words[at];
    if (is_late(i)) {
      word >>= 16;
      if (bit(i) + kBits > 32) word |= words[at + 1] << 16;
    }
    return as_type<float>((word & (mask() << position(i))) | 0x4b000000u);
  }

  // (q - middle) * 2^position
  static inline float centred(thread const uint* words, int i) {
    return in_mantissa(words, i) - float(0x800000u + (middle() << position(i)));
  }

  // q * 2^position
  static inline float plain(thread const uint* words, int i) { return in_mantissa(words, i) - 8388608.0f; }
};

// kBytes bytes as words, in the widest loads for which they are aligned when their number is a hint of that.
template <int kBytes>
inline void load_words(device const uchar* from, thread uint* words) {
  if (kBytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; i++) {
      const uint4 four = reinterpret_cast<device const uint4*>(from)[i];
      words[4 * i] = four.x, words[4 * i + 1] = four.y, words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
    }
  } else if (kBytes % 8 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 8; i++) {
      const uint2 two = reinterpret_cast<device const uint2*>(from)[i];
      words[2 * i] = two.x, words[2 * i + 1] = two.y;
    }
  } else if (kBytes % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 4; i++) words[i] = reinterpret_cast<device const uint*>(from)[i];
  } else {
#pragma unroll
    for (int i = 0; i < kBytes / 2; i++) {
      const uint half_word = reinterpret_cast<device const ushort*>(from)[i];
      words[i / 2] = i % 2 == 0 ? half_word : words[i / 2] | half_word << 16;
    }
  }
}

// The same byte by byte, for any stride and alignment. The words of bytes from `count` on are zero.
template <int kBytes>
inline void load_bytes(device const uchar* from, int64_t stride, int count, thread uint* words) {
#pragma unroll
  for (int i = 0; i < kBytes; i++) {
    const uint byte = i < count ? uint(from[i * stride]) : 0u;
    words[i / 4] = i % 4 == 0 ? byte : words[i / 4] | byte << (8 * (i % 4));
  }
}

// One weight, by its number in the row.
inline float load_weight(device const uchar* row, int64_t stride, uint bits, uint i) {
  const uint64_t bit = uint64_t(i) * bits;
  const uint shift = uint(bit % 8);
  device const uchar* from = row + int64_t(bit / 8) * stride;
  uint q = uint(from[0]) >> shift;
  if (shift + bits > 8) q |= uint(from[stride]) << (8 - shift);
  return float(q & ((1u << bits) - 1u));
}

// The scale or bias of weight k of a row that begins at `row`.
inline float load_group(device const void* groups, constant GatherQmvGroups& g, int64_t row, uint group) {
  return load_float(groups, row + int64_t(group) * g.stride, g.dtype);
}

#endif
