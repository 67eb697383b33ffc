// <metal_atomic>. The runtime loads and stores; a dispatch runs on one operating system thread, so that nothing comes
// between the two.
#pragma once
#include "simd.h"

namespace metal {

enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst
};
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
MSL_FUNCTION void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {}

template <class T>
struct atomic {
  static_assert(__is_same(T, int) || __is_same(T, uint) || __is_same(T, float) || __is_same(T, bool) ||
                    __is_same(T, ulong),
                "atomic: the type must be int, uint, bool, ulong or float");
  T value;
};
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_bool = atomic<bool>;
using atomic_ulong = atomic<ulong>;
using atomic_float = atomic<float>;

}  // namespace metal

namespace msl {
template <u32 bytes>
using bits_t = metal::conditional_t<bytes == 1, u8, metal::conditional_t<bytes == 4, u32, u64>>;

template <class T>
MSL_FUNCTION T load(const volatile metal::atomic<T>* object, const char* file, u32 line) {
  auto bits = static_cast<bits_t<sizeof(T)>>(msl_atomic_load(object, sizeof(T), file, line));
  return __builtin_bit_cast(T, bits);
}
template <class T>
MSL_FUNCTION void store(volatile metal::atomic<T>* object, T value, bool alone, const char* file, u32 line) {
  msl_atomic_store(object, __builtin_bit_cast(bits_t<sizeof(T)>, value), sizeof(T), alone, file, line);
}
template <class T>
using operand = typename metal::type_identity<T>::type;  // converts, is not deduced
}  // namespace msl

namespace metal {

template <class T>
MSL_FUNCTION T atomic_load_explicit(const volatile atomic<T>* object, memory_order, MSL_PLACE) {
  return msl::load(object, file_, line_);
}
template <class T>
MSL_FUNCTION void atomic_store_explicit(volatile atomic<T>* object, msl::operand<T> value, memory_order, MSL_PLACE) {
  msl::store(object, value, true, file_, line_);
}
template <class T>
MSL_FUNCTION T atomic_exchange_explicit(volatile atomic<T>* object, msl::operand<T> value, memory_order, MSL_PLACE) {
  T old = msl::load(object, file_, line_);
  msl::store(object, value, false, file_, line_);
  return old;
}
// Weak here too fails only when the values differ. Bits are compared: -0.0 and 0.0 differ, a NaN equals itself.
template <class T>
MSL_FUNCTION bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* object, T* expected,
                                                        msl::operand<T> desired, memory_order, memory_order,
                                                        MSL_PLACE) {
  using Bits = msl::bits_t<sizeof(T)>;
  T old = msl::load(object, file_, line_);
  bool equal = __builtin_bit_cast(Bits, old) == __builtin_bit_cast(Bits, *expected);
  if (equal)
    msl::store(object, desired, false, file_, line_);
  else
    *expected = old;
  return equal;
}

#define MSL_FETCH(name, ...)                                                                                     \
  template <class T>                                                                                             \
  MSL_FUNCTION T atomic_fetch_##name##_explicit(volatile atomic<T>* object, msl::operand<T> value, memory_order, \
                                                MSL_PLACE) {                                                     \
    T old = msl::load(object, file_, line_);                                                                     \
    msl::store(object, T(__VA_ARGS__), false, file_, line_);                                                     \
    return old;                                                                                                  \
  }
MSL_FETCH(add, old + value)
MSL_FETCH(sub, old - value)
MSL_FETCH(and, old& value)
MSL_FETCH(or, old | value)
MSL_FETCH(xor, old ^ value)
MSL_FETCH(min, value < old ? value : old)
MSL_FETCH(max, old < value ? value : old)
#undef MSL_FETCH

}  // namespace metal
