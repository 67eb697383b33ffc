// Scalar types, limits and the traits of <metal_type_traits>.
#pragma once
#include "constants.h"

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;
using int8_t = char;  // Metal's char is signed, and its int8_t is char
using uint8_t = uchar;
using int16_t = short;
using uint16_t = ushort;
using int32_t = int;
using uint32_t = uint;
using int64_t = long;
using uint64_t = ulong;
using size_t = ulong;
using ptrdiff_t = long;
using uintptr_t = ulong;
using intptr_t = long;
using half = _Float16;

// Header functions are inlined where they are called and have no line numbers of their own, so that check mode sees
// the kernel's line.
#define MSL_FUNCTION inline __attribute__((always_inline, nodebug))

// A kernel rounds a bfloat explicitly; it widens to float by itself. Integers convert, as Metal's do.
struct bfloat {
  ushort bits;

  bfloat() = default;
  MSL_FUNCTION constexpr explicit bfloat(float x) : bits(round(x)) {}
  MSL_FUNCTION constexpr explicit bfloat(half x) : bits(round(static_cast<float>(x))) {}
  template <class I>
    requires(__is_integral(I))
  MSL_FUNCTION constexpr bfloat(I x) : bits(round(static_cast<float>(x))) {}
  MSL_FUNCTION constexpr operator float() const { return __builtin_bit_cast(float, static_cast<uint>(bits) << 16); }

 private:
  MSL_FUNCTION static constexpr ushort round(float x) {
    uint u = __builtin_bit_cast(uint, x);
    if ((u & 0x7fffffff) > 0x7f800000) return static_cast<ushort>(u >> 16 | 0x40);  // stays a NaN
    return static_cast<ushort>((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
};

#define MSL_OPERATOR(op)                                                                                 \
  MSL_FUNCTION constexpr bfloat operator op(bfloat a, bfloat b) { return bfloat(float(a) op float(b)); } \
  MSL_FUNCTION constexpr bfloat& operator op## = (bfloat & a, bfloat b) { return a = a op b; }           \
  template <class I>                                                                                     \
    requires(__is_integral(I))                                                                           \
  MSL_FUNCTION constexpr bfloat operator op(bfloat a, I b) {                                             \
    return a op bfloat(b);                                                                               \
  }                                                                                                      \
  template <class I>                                                                                     \
    requires(__is_integral(I))                                                                           \
  MSL_FUNCTION constexpr bfloat operator op(I a, bfloat b) {                                             \
    return bfloat(a) op b;                                                                               \
  }
MSL_OPERATOR(+)
MSL_OPERATOR(-)
MSL_OPERATOR(*)
MSL_OPERATOR(/)
#undef MSL_OPERATOR
MSL_FUNCTION constexpr bfloat operator-(bfloat a) { return bfloat(-float(a)); }

constexpr half operator""h(long double x) { return static_cast<half>(x); }
constexpr half operator"" H(long double x) { return static_cast<half>(x); }
constexpr bfloat operator"" bf(long double x) { return bfloat(static_cast<float>(x)); }
constexpr bfloat operator"" BF(long double x) { return bfloat(static_cast<float>(x)); }

#define MSL_INTEGERS(M) M(char) M(uchar) M(short) M(ushort) M(int) M(uint) M(long) M(ulong)
#define MSL_FLOATS(M) M(half) M(float)
#define MSL_SCALARS(M) MSL_INTEGERS(M) MSL_FLOATS(M)

namespace metal {
using ::bfloat;
using ::half;
using ::size_t;
using ::uchar;
using ::uint;
using ::ulong;
using ::ushort;

template <class T>
struct type_identity {
  using type = T;
};
template <class T, T v>
struct integral_constant {
  static constexpr T value = v;
  using value_type = T;
  using type = integral_constant;
  constexpr operator T() const { return v; }
  constexpr T operator()() const { return v; }
};
template <bool b>
using bool_constant = integral_constant<bool, b>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <bool, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool b, class T = void>
using enable_if_t = typename enable_if<b, T>::type;

template <bool, class T, class>
struct conditional {
  using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool b, class T, class F>
using conditional_t = typename conditional<b, T, F>::type;

#define MSL_TRANSFORM(name, builtin) \
  template <class T>                 \
  struct name {                      \
    using type = builtin(T);         \
  };                                 \
  template <class T>                 \
  using name##_t = builtin(T);
MSL_TRANSFORM(remove_reference, __remove_reference_t)
MSL_TRANSFORM(remove_cv, __remove_cv)
MSL_TRANSFORM(remove_const, __remove_const)
MSL_TRANSFORM(remove_volatile, __remove_volatile)
MSL_TRANSFORM(remove_pointer, __remove_pointer)
MSL_TRANSFORM(decay, __decay)
MSL_TRANSFORM(make_unsigned, __make_unsigned)
MSL_TRANSFORM(make_signed, __make_signed)
MSL_TRANSFORM(remove_addrspace, __remove_cv)  // address spaces do not exist here
#undef MSL_TRANSFORM

#define MSL_TRAIT(name, ...)                    \
  template <class T>                            \
  inline constexpr bool name##_v = __VA_ARGS__; \
  template <class T>                            \
  struct name : bool_constant<name##_v<T>> {};
MSL_TRAIT(is_floating_point,
          __is_same(__remove_cv(T), float) || __is_same(__remove_cv(T), half) || __is_same(__remove_cv(T), bfloat))
MSL_TRAIT(is_integral, __is_integral(T))
MSL_TRAIT(is_arithmetic, is_floating_point_v<T> || __is_integral(T))
MSL_TRAIT(is_signed, is_floating_point_v<T> || __is_signed(T))
MSL_TRAIT(is_unsigned, __is_unsigned(T))
MSL_TRAIT(is_enum, __is_enum(T))
MSL_TRAIT(is_pointer, __is_pointer(T))
MSL_TRAIT(is_class, __is_class(T))
MSL_TRAIT(is_void, __is_void(T))
MSL_TRAIT(is_const, __is_const(T))
MSL_TRAIT(is_reference, __is_reference(T))
MSL_TRAIT(is_scalar, is_arithmetic_v<T> || __is_scalar(T))
MSL_TRAIT(is_trivially_copyable, __is_trivially_copyable(T))
#undef MSL_TRAIT

#define MSL_RELATION(name, ...)                 \
  template <class A, class B>                   \
  inline constexpr bool name##_v = __VA_ARGS__; \
  template <class A, class B>                   \
  struct name : bool_constant<name##_v<A, B>> {};
MSL_RELATION(is_same, __is_same(A, B))
MSL_RELATION(is_convertible, __is_convertible(A, B))
MSL_RELATION(is_base_of, __is_base_of(A, B))
#undef MSL_RELATION

template <class... B>
struct conjunction : bool_constant<(true && ... && bool(B::value))> {};
template <class... B>
struct disjunction : bool_constant<(false || ... || bool(B::value))> {};
template <class B>
struct negation : bool_constant<!bool(B::value)> {};
template <class... B>
inline constexpr bool conjunction_v = conjunction<B...>::value;
template <class... B>
inline constexpr bool disjunction_v = disjunction<B...>::value;

template <class T>
remove_reference_t<T>&& declval();
template <class T, T... I>
struct integer_sequence {};
template <size_t... I>
using index_sequence = integer_sequence<size_t, I...>;
template <size_t N>
using make_index_sequence = __make_integer_seq<integer_sequence, size_t, N>;

template <class T>
struct numeric_limits {
  static constexpr bool is_specialized = __is_integral(T), is_signed = __is_signed(T), is_integer = __is_integral(T);
  static constexpr bool has_infinity = false;
  static constexpr int digits = sizeof(T) * 8 - is_signed;
  static constexpr T max() { return is_signed ? T((1ul << (sizeof(T) * 8 - 1)) - 1) : T(~T(0)); }
  static constexpr T min() { return is_signed ? T(-long(max()) - 1) : T(0); }
  static constexpr T lowest() { return min(); }
  static constexpr T infinity() { return T(0); }
  static constexpr T quiet_NaN() { return T(0); }
  static constexpr T epsilon() { return T(0); }
};
template <>
struct numeric_limits<bool> {
  static constexpr bool is_specialized = true, is_signed = false, is_integer = true, has_infinity = false;
  static constexpr int digits = 1;
  static constexpr bool max() { return true; }
  static constexpr bool min() { return false; }
  static constexpr bool lowest() { return false; }
};
#define MSL_LIMITS(T, MAX, MIN, EPSILON, DIGITS)                                                            \
  template <>                                                                                               \
  struct numeric_limits<T> {                                                                                \
    static constexpr bool is_specialized = true, is_signed = true, is_integer = false, has_infinity = true; \
    static constexpr int digits = DIGITS;                                                                   \
    static constexpr T max() { return T(MAX); }                                                             \
    static constexpr T min() { return T(MIN); }                                                             \
    static constexpr T lowest() { return T(-MAX); }                                                         \
    static constexpr T infinity() { return T(__builtin_inff()); }                                           \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); }                                        \
    static constexpr T epsilon() { return T(EPSILON); }                                                     \
  };
MSL_LIMITS(float, 3.402823466e+38f, 1.175494351e-38f, 1.192092896e-7f, 24)
MSL_LIMITS(half, 65504.f, 6.103515625e-5f, 9.765625e-4f, 11)
MSL_LIMITS(bfloat, 3.38953138925e+38f, 1.175494351e-38f, 7.8125e-3f, 8)
#undef MSL_LIMITS
template <class T>
struct numeric_limits<const T> : numeric_limits<T> {};

template <class A, class B>
struct pair {
  A first;
  B second;
};
template <class T, size_t N>
struct array {
  T elements[N ? N : 1];
  constexpr T& operator[](size_t i) { return elements[i]; }
  constexpr const T& operator[](size_t i) const { return elements[i]; }
  static constexpr size_t size() { return N; }
  constexpr T* data() { return elements; }
  constexpr const T* data() const { return elements; }
  constexpr T* begin() { return elements; }
  constexpr T* end() { return elements + N; }
  constexpr const T* begin() const { return elements; }
  constexpr const T* end() const { return elements + N; }
};
template <class T>
MSL_FUNCTION constexpr void swap(T& a, T& b) {
  T kept = a;
  a = b;
  b = kept;
}
}  // namespace metal
