// <metal_simdgroup>, <metal_quadgroup> and barriers. A simd function writes this lane's value into its slot and waits;
// the last lane to arrive executes the collective; then every lane reads what it is owed.
#pragma once
#include "../../runtime/abi.h"
#include "math.h"

namespace msl {

// What Metal's simd functions take: numbers of up to 32 bits and their vectors. No bool, bfloat or 64-bit integer.
template <class T>
struct simd_gate {
  static constexpr bool valid =
      metal::is_arithmetic_v<T> && sizeof(T) <= 4 && !__is_same(T, bfloat) && !__is_same(T, bool);
};
template <class T, int N>
struct simd_gate<metal::vec<T, N>> : simd_gate<T> {};
template <class T>
concept simd_type = simd_gate<T>::valid;

template <class T>
MSL_FUNCTION T& slot(Lane& lane) {
  static_assert(sizeof(T) <= kSlotBytes);
  return *reinterpret_cast<T*>(lane.slot);
}
template <class T>
MSL_FUNCTION T* shared(Simdgroup& s) {
  return reinterpret_cast<T*>(s.shared);
}

template <class T>
void gather(Simdgroup& s, u32 active) {
  for (u32 i = 0; i < s.size; i++)
    if (active >> i & 1) shared<T>(s)[i] = slot<T>(s.lanes[i]);
}

// Pairs at distance 1, 2, 4, ...: the order of a butterfly of shuffles.
template <class T, class Operation>
void reduce(Simdgroup& s, u32 active) {
  gather<T>(s, active);
  T* value = shared<T>(s);
  for (u32 step = 1; step < kSimdWidth; step *= 2) {
    for (u32 i = 0; i + step < kSimdWidth; i += 2 * step) {
      if (!(active >> (i + step) & 1)) continue;
      value[i] = active >> i & 1 ? Operation::apply(value[i], value[i + step]) : value[i + step];
      active |= 1u << i;
    }
  }
}

struct Add {
  template <class T>
  MSL_FUNCTION static T apply(T a, T b) {
    return a + b;
  }
};
struct Multiply {
  template <class T>
  MSL_FUNCTION static T apply(T a, T b) {
    return a * b;
  }
};
struct Minimum {
  template <class T>
  MSL_FUNCTION static T apply(T a, T b) {
    return metal::min(a, b);
  }
};
struct Maximum {
  template <class T>
  MSL_FUNCTION static T apply(T a, T b) {
    return metal::max(a, b);
  }
};
struct And {
  template <class T>
  MSL_FUNCTION static T apply(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <class T>
  MSL_FUNCTION static T apply(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <class T>
  MSL_FUNCTION static T apply(T a, T b) {
    if constexpr (metal::is_floating_point_v<T>) {
      using Bits = metal::conditional_t<sizeof(T) == 2, ushort, uint>;
      return __builtin_bit_cast(T, static_cast<Bits>(__builtin_bit_cast(Bits, a) ^ __builtin_bit_cast(Bits, b)));
    } else {
      return a ^ b;
    }
  }
};

struct Place {
  const char* function;
  const char* file;
  u32 line;
};
// The default argument of every simd function and barrier: where the kernel calls it.
#define MSL_PLACE const char *file_ = __builtin_FILE(), msl::u32 line_ = __builtin_LINE()

template <class T>
MSL_FUNCTION T* exchange(T value, const char* function, const char* file, u32 line) {
  slot<T>(*msl_lane) = value;
  msl_wait(&gather<T>, Wait::simd, 0, function, file, line);
  return shared<T>(*msl_lane->simdgroup);
}

template <class T, class Operation>
MSL_FUNCTION T reduced(T value, const char* function, const char* file, u32 line) {
  slot<T>(*msl_lane) = value;
  msl_wait(&reduce<T, Operation>, Wait::simd, 0, function, file, line);
  return *shared<T>(*msl_lane->simdgroup);
}

// The value of lane `from`, or this lane's own where there is no such lane.
template <class T>
MSL_FUNCTION T value_of(T value, u32 from, const char* function, const char* file, u32 line) {
  const T* values = exchange(value, function, file, line);
  if (from >= kSimdWidth) return value;
  if (msl_lane->simdgroup->active >> from & 1) return values[from];
  msl_inactive_lane(function, file, line);
  return value;
}

// The reduction over the lanes of this lane's quad that take part.
template <class T, class Operation>
MSL_FUNCTION T quad_reduced(T value, const char* function, const char* file, u32 line) {
  const T* values = exchange(value, function, file, line);
  u32 first = msl_lane->index & ~3u, active = msl_lane->simdgroup->active >> first & 15;
  T result = values[first + __builtin_ctz(active)];
  for (u32 rest = active & (active - 1); rest; rest &= rest - 1)
    result = Operation::apply(result, values[first + __builtin_ctz(rest)]);
  return result;
}

template <class T, class Operation>
MSL_FUNCTION T prefix(T value, T start, bool inclusive, const char* function, const char* file, u32 line) {
  const T* values = exchange(value, function, file, line);
  T result = start;
  for (u32 i = 0; i < msl_lane->index + inclusive; i++)
    if (msl_lane->simdgroup->active >> i & 1) result = Operation::apply(result, values[i]);
  return result;
}

}  // namespace msl

namespace metal {

#define MSL_REDUCTION(name, Operation)                                               \
  template <msl::simd_type T>                                                        \
  MSL_FUNCTION T simd_##name(T value, MSL_PLACE) {                                   \
    return msl::reduced<T, msl::Operation>(value, "simd_" #name, file_, line_);      \
  }                                                                                  \
  template <msl::simd_type T>                                                        \
  MSL_FUNCTION T quad_##name(T value, MSL_PLACE) {                                   \
    return msl::quad_reduced<T, msl::Operation>(value, "quad_" #name, file_, line_); \
  }
MSL_REDUCTION(sum, Add)
MSL_REDUCTION(product, Multiply)
MSL_REDUCTION(min, Minimum)
MSL_REDUCTION(max, Maximum)
MSL_REDUCTION(and, And)
MSL_REDUCTION(or, Or)
MSL_REDUCTION(xor, Xor)
#undef MSL_REDUCTION

#define MSL_PREFIX(name, Operation, start)                                                                    \
  template <msl::simd_type T>                                                                                 \
  MSL_FUNCTION T simd_prefix_inclusive_##name(T value, MSL_PLACE) {                                           \
    return msl::prefix<T, msl::Operation>(value, start, true, "simd_prefix_inclusive_" #name, file_, line_);  \
  }                                                                                                           \
  template <msl::simd_type T>                                                                                 \
  MSL_FUNCTION T simd_prefix_exclusive_##name(T value, MSL_PLACE) {                                           \
    return msl::prefix<T, msl::Operation>(value, start, false, "simd_prefix_exclusive_" #name, file_, line_); \
  }
MSL_PREFIX(sum, Add, T(0))
MSL_PREFIX(product, Multiply, T(1))
#undef MSL_PREFIX

#define MSL_LANE msl_lane->index
#define MSL_SHUFFLE(name, from)                             \
  template <msl::simd_type T>                               \
  MSL_FUNCTION T name(T value, ushort n, MSL_PLACE) {       \
    return msl::value_of(value, from, #name, file_, line_); \
  }
MSL_SHUFFLE(simd_shuffle, n)
MSL_SHUFFLE(simd_broadcast, n)
MSL_SHUFFLE(simd_shuffle_xor, MSL_LANE ^ n)
MSL_SHUFFLE(simd_shuffle_up, MSL_LANE - n)
MSL_SHUFFLE(simd_shuffle_down, MSL_LANE + n)
MSL_SHUFFLE(simd_shuffle_rotate_up, (MSL_LANE - n) % 32)
MSL_SHUFFLE(simd_shuffle_rotate_down, (MSL_LANE + n) % 32)
MSL_SHUFFLE(quad_shuffle, (MSL_LANE & ~3u) + (n & 3))
MSL_SHUFFLE(quad_broadcast, (MSL_LANE & ~3u) + (n & 3))
MSL_SHUFFLE(quad_shuffle_xor, MSL_LANE ^ (n & 3))
MSL_SHUFFLE(quad_shuffle_up, (MSL_LANE & 3) < n ? ~0u : MSL_LANE - n)
MSL_SHUFFLE(quad_shuffle_down, (MSL_LANE & 3) + n > 3 ? ~0u : MSL_LANE + n)
#undef MSL_SHUFFLE

template <msl::simd_type T>
MSL_FUNCTION T simd_shuffle_and_fill_up(T value, T fill, ushort n, MSL_PLACE) {
  T shifted = msl::value_of(value, MSL_LANE - n, "simd_shuffle_and_fill_up", file_, line_);
  T filled = msl::value_of(fill, MSL_LANE < n ? MSL_LANE + 32 - n : ~0u, "simd_shuffle_and_fill_up", file_, line_);
  return MSL_LANE < n ? filled : shifted;
}
template <msl::simd_type T>
MSL_FUNCTION T simd_shuffle_and_fill_down(T value, T fill, ushort n, MSL_PLACE) {
  bool inside = MSL_LANE + n < 32;
  T shifted = msl::value_of(value, MSL_LANE + n, "simd_shuffle_and_fill_down", file_, line_);
  T filled = msl::value_of(fill, inside ? ~0u : MSL_LANE + n - 32, "simd_shuffle_and_fill_down", file_, line_);
  return inside ? shifted : filled;
}

template <msl::simd_type T>
MSL_FUNCTION T simd_broadcast_first(T value, MSL_PLACE) {
  const T* values = msl::exchange(value, "simd_broadcast_first", file_, line_);
  return values[__builtin_ctz(msl_lane->simdgroup->active)];
}

struct simd_vote {
  using vote_t = ulong;
  vote_t mask;
  MSL_FUNCTION explicit operator vote_t() const { return mask; }
  MSL_FUNCTION bool any() const { return mask; }
  MSL_FUNCTION bool all() const { return mask == (1ul << msl_lane->simdgroup->size) - 1; }
};
MSL_FUNCTION simd_vote simd_ballot(bool value, MSL_PLACE) {
  const bool* values = msl::exchange(value, "simd_ballot", file_, line_);
  ulong mask = 0;
  for (uint rest = msl_lane->simdgroup->active; rest; rest &= rest - 1)
    mask |= ulong(values[__builtin_ctz(rest)]) << __builtin_ctz(rest);
  return {mask};
}
MSL_FUNCTION simd_vote simd_active_threads_mask(MSL_PLACE) { return simd_ballot(true, file_, line_); }
MSL_FUNCTION bool simd_any(bool value, MSL_PLACE) {
  return msl::reduced<bool, msl::Or>(value, "simd_any", file_, line_);
}
MSL_FUNCTION bool simd_all(bool value, MSL_PLACE) {
  return msl::reduced<bool, msl::And>(value, "simd_all", file_, line_);
}
MSL_FUNCTION bool quad_any(bool value, MSL_PLACE) {
  return msl::quad_reduced<bool, msl::Or>(value, "quad_any", file_, line_);
}
MSL_FUNCTION bool quad_all(bool value, MSL_PLACE) {
  return msl::quad_reduced<bool, msl::And>(value, "quad_all", file_, line_);
}
MSL_FUNCTION bool simd_is_first(MSL_PLACE) {
  return uint(__builtin_ctz(simd_ballot(true, file_, line_).mask)) == MSL_LANE;
}
#undef MSL_LANE

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
MSL_FUNCTION constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }

MSL_FUNCTION void threadgroup_barrier(mem_flags memory, MSL_PLACE) {
  msl_wait(nullptr, msl::Wait::threadgroup_barrier, uint(memory), "threadgroup_barrier", file_, line_);
}
MSL_FUNCTION void simdgroup_barrier(mem_flags memory, MSL_PLACE) {
  msl_wait(nullptr, msl::Wait::simdgroup_barrier, uint(memory), "simdgroup_barrier", file_, line_);
}

}  // namespace metal
