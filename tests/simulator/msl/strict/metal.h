// The Metal 3.1 library as declarations for clang's OpenCL C++ front end, which has Metal's address spaces: device is
// __global, constant __constant, threadgroup __local and thread __private. A member function of this header works on
// an object in any space, which takes two declarations: an unqualified one is for every space but constant.
//
// As in Metal, functions are overload sets closed over their types, without templates, so that mixed arguments are
// ambiguous; a bfloat has no functions of its own; components of a vector have no address; and whatever is newer than
// Metal 3.1 is missing.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;
using int8_t = char;
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

#define MSL_FUNCTION inline
#define MSL_INTEGERS(M) M(char) M(uchar) M(short) M(ushort) M(int) M(uint) M(long) M(ulong)
#define MSL_SCALARS(M) MSL_INTEGERS(M) M(half) M(float)
#define MSL_TYPES(M) MSL_SCALARS(M) M(bool) M(bfloat)

namespace metal {

// -- traits -----------------------------------------------------------------------------------------------------------

template <class T, T v>
struct integral_constant {
  static constexpr __constant T value = v;
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
  using name##_t = typename name<T>::type;
MSL_TRANSFORM(remove_reference, __remove_reference_t)
MSL_TRANSFORM(remove_cv, __remove_cv)
MSL_TRANSFORM(remove_const, __remove_const)
MSL_TRANSFORM(remove_volatile, __remove_volatile)
MSL_TRANSFORM(remove_pointer, __remove_pointer)
MSL_TRANSFORM(decay, __decay)
MSL_TRANSFORM(make_unsigned, __make_unsigned)
MSL_TRANSFORM(make_signed, __make_signed)
#undef MSL_TRANSFORM
template <class T>
struct remove_addrspace {
  using type = T;
};
template <class T>
struct remove_addrspace<__global T> {
  using type = T;
};
template <class T>
struct remove_addrspace<__constant T> {
  using type = T;
};
template <class T>
struct remove_addrspace<__local T> {
  using type = T;
};
template <class T>
struct remove_addrspace<__private T> {
  using type = T;
};
template <class T>
using remove_addrspace_t = typename remove_addrspace<T>::type;
}  // namespace metal

struct bfloat;

namespace metal {
#define MSL_TRAIT(name, ...)                        \
  template <class T>                                \
  constexpr __constant bool name##_v = __VA_ARGS__; \
  template <class T>                                \
  struct name : bool_constant<__VA_ARGS__> {};
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
#define MSL_RELATION(name)                             \
  template <class A, class B>                          \
  constexpr __constant bool name##_v = __##name(A, B); \
  template <class A, class B>                          \
  struct name : bool_constant<__##name(A, B)> {};
MSL_RELATION(is_same)
MSL_RELATION(is_convertible)
MSL_RELATION(is_base_of)
#undef MSL_RELATION
template <class... B>
struct conjunction : true_type {};
template <class A, class... B>
struct conjunction<A, B...> : bool_constant<bool(A::value) && conjunction<B...>::value> {};
template <class... B>
struct disjunction : false_type {};
template <class A, class... B>
struct disjunction<A, B...> : bool_constant<bool(A::value) || disjunction<B...>::value> {};
template <class B>
struct negation : bool_constant<!bool(B::value)> {};
template <class T>
__private remove_reference_t<T>&& declval();
template <class T, T... I>
struct integer_sequence {};
}  // namespace metal

// -- bfloat -----------------------------------------------------------------------------------------------------------

// Widens to float by itself; the way back is written. Integers convert, as Metal's do.
struct bfloat {
  bfloat() = default;
  bfloat(const bfloat&) = default;
  bfloat(const __constant bfloat&);
  constexpr explicit bfloat(float) : bits(0) {}
  constexpr explicit bfloat(half) : bits(0) {}
  template <class I, class = metal::enable_if_t<__is_integral(I)>>
  constexpr bfloat(I) : bits(0) {}
  bfloat& operator=(const bfloat&) = default;
  bfloat& operator=(const __constant bfloat&);
  constexpr operator float() const { return 0; }
  constexpr operator float() const __constant { return 0; }

 private:
  ushort bits;
};
#define MSL_OPERATOR(op)                                                          \
  bfloat operator op(bfloat, bfloat);                                             \
  template <class H>                                                              \
  metal::enable_if_t<__is_same(H, half), bfloat> operator op(bfloat, H) = delete; \
  template <class H>                                                              \
  metal::enable_if_t<__is_same(H, half), bfloat> operator op(H, bfloat) = delete; \
  __private bfloat& operator op## = (__private bfloat&, bfloat);                  \
  __global bfloat& operator op## = (__global bfloat&, bfloat);                    \
  __local bfloat& operator op## = (__local bfloat&, bfloat);                      \
  template <class I, class = metal::enable_if_t<__is_integral(I)>>                \
  bfloat operator op(bfloat, I);                                                  \
  template <class I, class = metal::enable_if_t<__is_integral(I)>>                \
  bfloat operator op(I, bfloat);
MSL_OPERATOR(+)
MSL_OPERATOR(-)
MSL_OPERATOR(*)
MSL_OPERATOR(/)
#undef MSL_OPERATOR
bfloat operator-(bfloat);

// -- vectors ----------------------------------------------------------------------------------------------------------

namespace metal {
using ::bfloat;
using ::int8_t, ::uint8_t, ::int16_t, ::uint16_t, ::int32_t, ::uint32_t, ::int64_t, ::uint64_t;
using ::size_t, ::uchar, ::uint, ::ulong, ::ushort;

template <class T, int N>
struct vec;
template <class T, int N>
struct packed_vec;

// A component or a swizzle is a property: it reads and writes like a member, and has no address.
#define MSL_PROPERTY(type, name)      \
  type get_##name() const;            \
  type get_##name() const __constant; \
  void put_##name(type);              \
  __declspec(property(get = get_##name, put = put_##name)) type name;

#define MSL_EACH_2(M, ...) M(x, __VA_ARGS__) M(y, __VA_ARGS__)
#define MSL_EACH_3(M, ...) MSL_EACH_2(M, __VA_ARGS__) M(z, __VA_ARGS__)
#define MSL_EACH_4(M, ...) MSL_EACH_3(M, __VA_ARGS__) M(w, __VA_ARGS__)
// The same again: a macro does not expand inside itself.
#define MSL_AGAIN_2(M, ...) M(x, __VA_ARGS__) M(y, __VA_ARGS__)
#define MSL_AGAIN_3(M, ...) MSL_AGAIN_2(M, __VA_ARGS__) M(z, __VA_ARGS__)
#define MSL_AGAIN_4(M, ...) MSL_AGAIN_3(M, __VA_ARGS__) M(w, __VA_ARGS__)
#define MSL_THIRD_2(M, ...) M(x, __VA_ARGS__) M(y, __VA_ARGS__)
#define MSL_THIRD_3(M, ...) MSL_THIRD_2(M, __VA_ARGS__) M(z, __VA_ARGS__)
#define MSL_THIRD_4(M, ...) MSL_THIRD_3(M, __VA_ARGS__) M(w, __VA_ARGS__)
#define MSL_FOURTH_2(M, ...) M(x, __VA_ARGS__) M(y, __VA_ARGS__)
#define MSL_FOURTH_3(M, ...) MSL_FOURTH_2(M, __VA_ARGS__) M(z, __VA_ARGS__)
#define MSL_FOURTH_4(M, ...) MSL_FOURTH_3(M, __VA_ARGS__) M(w, __VA_ARGS__)

#define MSL_PASTE_2(a, b) MSL_PASTE_2_(a, b)
#define MSL_VEC(n) vec<T, n>
#define MSL_SWIZZLE_4(d, c, b, a) MSL_PROPERTY(MSL_VEC(4), a##b##c##d)
#define MSL_SWIZZLE_3(c, b, a, N) MSL_PROPERTY(MSL_VEC(3), a##b##c) MSL_FOURTH_##N(MSL_SWIZZLE_4, c, b, a)
#define MSL_SWIZZLE_2(b, a, N) MSL_PROPERTY(MSL_VEC(2), a##b) MSL_THIRD_##N(MSL_SWIZZLE_3, b, a, N)
#define MSL_SWIZZLE_1(a, N) MSL_PROPERTY(T, a) MSL_AGAIN_##N(MSL_SWIZZLE_2, a, N)

#define MSL_VECTOR_OPERATOR(op)     \
  friend vec operator op(vec, vec); \
  vec& operator op## = (vec);
#define MSL_COMPARISON(op, N) friend vec<bool, N> operator op(vec, vec);

// What stays is storage; a vector has no components that are members.
#define MSL_VECTOR_MEMBERS(N)                               \
  vec() = default;                                          \
  vec(const vec&) = default;                                \
  vec(const __constant vec&);                               \
  vec& operator=(const vec&) = default;                     \
  vec& operator=(const __constant vec&);                    \
  constexpr vec(T s) : storage{s} {}                        \
  template <class U, class = enable_if_t<!__is_same(U, T)>> \
  explicit vec(vec<U, N>);                                  \
  T& operator[](long);                                      \
  const T& operator[](long) const;                          \
  const __constant T& operator[](long) const __constant;    \
  MSL_VECTOR_OPERATOR(+)                                    \
  MSL_VECTOR_OPERATOR(-)                                    \
  MSL_VECTOR_OPERATOR(*)                                    \
  MSL_VECTOR_OPERATOR(/)                                    \
  MSL_VECTOR_OPERATOR(%)                                    \
  MSL_VECTOR_OPERATOR(&)                                    \
  MSL_VECTOR_OPERATOR(|)                                    \
  MSL_VECTOR_OPERATOR(^)                                    \
  MSL_VECTOR_OPERATOR(<<)                                   \
  MSL_VECTOR_OPERATOR(>>)                                   \
  MSL_COMPARISON(<, N)                                      \
  MSL_COMPARISON(>, N)                                      \
  MSL_COMPARISON(<=, N)                                     \
  MSL_COMPARISON(>=, N)                                     \
  MSL_COMPARISON(==, N)                                     \
  MSL_COMPARISON(!=, N)                                     \
  MSL_COMPARISON(&&, N)                                     \
  MSL_COMPARISON(||, N)                                     \
  friend vec operator-(vec);                                \
  friend vec operator~(vec);                                \
  friend vec<bool, N> operator!(vec);                       \
  vec& operator++();                                        \
  vec& operator--();                                        \
  MSL_EACH_##N(MSL_SWIZZLE_1, N) MSL_PROPERTY(T, r) MSL_PROPERTY(T, g)

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  MSL_VECTOR_MEMBERS(2)
  constexpr vec(T a, T b) : storage{a, b} {}

 private:
  T storage[2];
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  MSL_VECTOR_MEMBERS(3)
  MSL_PROPERTY(T, b)
  MSL_PROPERTY(MSL_VEC(3), rgb)
  constexpr vec(T a, T b, T c) : storage{a, b, c} {}
  vec(vec<T, 2>, T);
  vec(T, vec<T, 2>);

 private:
  T storage[3];
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  MSL_VECTOR_MEMBERS(4)
  MSL_PROPERTY(T, b)
  MSL_PROPERTY(T, a)
  MSL_PROPERTY(MSL_VEC(3), rgb)
  constexpr vec(T a, T b, T c, T d) : storage{a, b, c, d} {}
  vec(vec<T, 2>, vec<T, 2>);
  vec(vec<T, 2>, T, T);
  vec(T, vec<T, 2>, T);
  vec(T, T, vec<T, 2>);
  vec(vec<T, 3>, T);
  vec(T, vec<T, 3>);

 private:
  T storage[4];
};

#define MSL_PACKED_MEMBERS(N)                            \
  packed_vec() = default;                                \
  packed_vec(const packed_vec&) = default;               \
  packed_vec(const __constant packed_vec&);              \
  packed_vec& operator=(const packed_vec&) = default;    \
  packed_vec(vec<T, N>);                                 \
  operator vec<T, N>() const;                            \
  operator vec<T, N>() const __constant;                 \
  T& operator[](long);                                   \
  const T& operator[](long) const;                       \
  const __constant T& operator[](long) const __constant; \
  MSL_EACH_##N(MSL_SWIZZLE_1, N)
template <class T>
struct packed_vec<T, 2> {
  MSL_PACKED_MEMBERS(2)
  packed_vec(T, T);

 private:
  T storage[2];
};
template <class T>
struct packed_vec<T, 3> {
  MSL_PACKED_MEMBERS(3)
  packed_vec(T, T, T);

 private:
  T storage[3];
};
template <class T>
struct packed_vec<T, 4> {
  MSL_PACKED_MEMBERS(4)
  packed_vec(T, T, T, T);

 private:
  T storage[4];
};
}  // namespace metal

#define MSL_NAMES(T)                                                               \
  using T##2 = metal::vec<T, 2>;                                                   \
  using T##3 = metal::vec<T, 3>;                                                   \
  using T##4 = metal::vec<T, 4>;                                                   \
  using packed_##T##2 = metal::packed_vec<T, 2>;                                   \
  using packed_##T##3 = metal::packed_vec<T, 3>;                                   \
  using packed_##T##4 = metal::packed_vec<T, 4>;                                   \
  namespace metal {                                                                \
  using ::T##2, ::T##3, ::T##4, ::packed_##T##2, ::packed_##T##3, ::packed_##T##4; \
  }
MSL_TYPES(MSL_NAMES)
#undef MSL_NAMES

template <class T, class U>
constexpr T as_type(U) {
  static_assert(sizeof(T) == sizeof(U), "as_type between types of different size");
  return T();
}

namespace metal {
using ::as_type;

template <class T>
struct numeric_limits {
  static constexpr __constant bool is_specialized = true, is_signed = __is_signed(T), is_integer = __is_integral(T);
  static constexpr __constant bool has_infinity = !__is_integral(T);
  static constexpr __constant int digits = sizeof(T) * 8;
  static constexpr T max() { return T(1); }
  static constexpr T min() { return T(0); }
  static constexpr T lowest() { return T(0); }
  static constexpr T infinity() { return T(0); }
  static constexpr T quiet_NaN() { return T(0); }
  static constexpr T signaling_NaN() { return T(0); }
  static constexpr T denorm_min() { return T(0); }
  static constexpr T epsilon() { return T(0); }
};

template <class T, size_t N>
struct array {
  T elements[N];
  T& operator[](size_t);
  const T& operator[](size_t) const;
  const __constant T& operator[](size_t) const __constant;
  static constexpr size_t size() { return N; }
  T* data();
  const T* data() const;
};

// -- math -------------------------------------------------------------------------------------------------------------

#define MSL_VECTORS(M, T, ...) M(T##2, T, 2, __VA_ARGS__) M(T##3, T, 3, __VA_ARGS__) M(T##4, T, 4, __VA_ARGS__)
#define MSL_WIDTHS(M, T, ...) M(T, T, 1, __VA_ARGS__) MSL_VECTORS(M, T, __VA_ARGS__)
#define MSL_1(V, T, N, name) V name(V);
#define MSL_2(V, T, N, name) V name(V, V);
#define MSL_3(V, T, N, name) V name(V, V, V);
#define MSL_OF_FLOATS(arity, name) MSL_WIDTHS(MSL_##arity, half, name) MSL_WIDTHS(MSL_##arity, float, name)
#define MSL_OF_FLOAT(arity, name) MSL_WIDTHS(MSL_##arity, float, name)
#define MSL_OUT(V, T, N, name) \
  V name(V, __private V&);     \
  V name(V, __global V&);      \
  V name(V, __local V&);

// clang-format off
#define MSL_ELEMENTARY(M) \
  M(1, acos) \
  M(1, acosh) \
  M(1, asin) \
  M(1, asinh) \
  M(1, atan) \
  M(1, atanh) \
  M(1, ceil) \
  M(1, cos) \
  M(1, cosh) \
  M(1, cospi) M(1, exp) M(1, exp10) M(1, exp2) M(1, fabs) M(1, floor) M(1, fract) M(1, log) M(1, log10) M(1, log2) \
  M(1, rint) M(1, round) M(1, rsqrt) M(1, sin) M(1, sinh) M(1, sinpi) M(1, sqrt) M(1, tan) M(1, tanh) M(1, tanpi) \
  M(1, trunc) M(1, saturate) M(2, atan2) M(2, copysign) M(2, divide) M(2, fdim) M(2, fmax) M(2, fmin) \
  M(2, fmod) M(2, pow) M(2, powr) M(3, fma) M(3, fmax3) M(3, fmin3) M(3, fmedian3)
// clang-format on
MSL_ELEMENTARY(MSL_OF_FLOATS)
MSL_OF_FLOATS(1, sign)
MSL_OF_FLOATS(2, step)
MSL_OF_FLOATS(2, nextafter)
MSL_OF_FLOATS(3, mix)
MSL_OF_FLOATS(3, mad)
MSL_OF_FLOATS(3, smoothstep)
MSL_WIDTHS(MSL_OUT, float, sincos)
MSL_WIDTHS(MSL_OUT, half, sincos)
MSL_WIDTHS(MSL_OUT, float, modf)
MSL_WIDTHS(MSL_OUT, half, modf)
#define MSL_EXPONENT(V, I)  \
  V ldexp(V, I);            \
  V frexp(V, __private I&); \
  I ilogb(V);
MSL_EXPONENT(float, int)
MSL_EXPONENT(half, int)
#undef MSL_EXPONENT
// clang-format off
#define MSL_COMMON(T) \
  MSL_WIDTHS(MSL_2, T, min) \
  MSL_WIDTHS(MSL_2, T, max) \
  MSL_WIDTHS(MSL_1, T, abs) \
  MSL_WIDTHS(MSL_3, T, clamp) MSL_WIDTHS(MSL_3, T, min3) MSL_WIDTHS(MSL_3, T, max3) MSL_WIDTHS(MSL_3, T, median3)
// clang-format on
MSL_SCALARS(MSL_COMMON)
#undef MSL_COMMON
#define MSL_FLOAT_COMMON(M) M(1, abs) M(2, min) M(2, max) M(3, clamp) M(3, min3) M(3, max3) M(3, median3)
namespace fast {
MSL_ELEMENTARY(MSL_OF_FLOAT)
MSL_FLOAT_COMMON(MSL_OF_FLOAT)
MSL_WIDTHS(MSL_OUT, float, sincos)
}  // namespace fast
namespace precise {
MSL_ELEMENTARY(MSL_OF_FLOAT)
MSL_FLOAT_COMMON(MSL_OF_FLOAT)
MSL_WIDTHS(MSL_OUT, float, sincos)
}  // namespace precise

#define MSL_SELECT_VECTOR(V, T, N, _) V select(V, V, bool##N);
#define MSL_SELECT(T)   \
  T select(T, T, bool); \
  MSL_VECTORS(MSL_SELECT_VECTOR, T, _)
MSL_TYPES(MSL_SELECT)
#undef MSL_SELECT

#define MSL_PREDICATE_VECTOR(V, T, N, name) bool##N name(V);
#define MSL_RELATION_VECTOR(V, T, N, name) bool##N name(V, V);
#define MSL_PREDICATE(T)                           \
  bool isnan(T);                                   \
  bool isinf(T);                                   \
  bool isfinite(T);                                \
  bool isnormal(T);                                \
  bool signbit(T);                                 \
  bool isunordered(T, T);                          \
  bool isordered(T, T);                            \
  MSL_VECTORS(MSL_PREDICATE_VECTOR, T, isnan)      \
  MSL_VECTORS(MSL_PREDICATE_VECTOR, T, isinf)      \
  MSL_VECTORS(MSL_PREDICATE_VECTOR, T, isfinite)   \
  MSL_VECTORS(MSL_PREDICATE_VECTOR, T, isnormal)   \
  MSL_VECTORS(MSL_PREDICATE_VECTOR, T, signbit)    \
  MSL_VECTORS(MSL_RELATION_VECTOR, T, isunordered) \
  MSL_VECTORS(MSL_RELATION_VECTOR, T, isordered)
MSL_PREDICATE(half)
MSL_PREDICATE(float)
MSL_PREDICATE(bfloat)
#undef MSL_PREDICATE

bool any(bool);
bool all(bool);
bool any(bool2);
bool any(bool3);
bool any(bool4);
bool all(bool2);
bool all(bool3);
bool all(bool4);

#define MSL_BITS(V, T, N, _)     \
  V extract_bits(V, uint, uint); \
  V insert_bits(V, V, uint, uint);
// clang-format off
#define MSL_INTEGER(T) \
  MSL_WIDTHS(MSL_1, T, popcount) \
  MSL_WIDTHS(MSL_1, T, clz) \
  MSL_WIDTHS(MSL_1, T, ctz) \
  MSL_WIDTHS(MSL_1, T, reverse_bits) \
  MSL_WIDTHS(MSL_2, T, rotate) \
  MSL_WIDTHS(MSL_2, T, mulhi) \
  MSL_WIDTHS(MSL_3, T, madhi) \
  MSL_WIDTHS(MSL_2, T, addsat) \
  MSL_WIDTHS(MSL_2, T, subsat) \
  MSL_WIDTHS(MSL_2, T, hadd) MSL_WIDTHS(MSL_2, T, rhadd) MSL_WIDTHS(MSL_3, T, madsat) MSL_WIDTHS(MSL_BITS, T, _)
// clang-format on
MSL_INTEGERS(MSL_INTEGER)
#undef MSL_INTEGER
// absdiff is unsigned.
MSL_WIDTHS(MSL_2, int, mul24)
MSL_WIDTHS(MSL_2, uint, mul24)
MSL_WIDTHS(MSL_3, int, mad24)
MSL_WIDTHS(MSL_3, uint, mad24)

#define MSL_GEOMETRY(V, T, N, _) \
  T dot(V, V);                   \
  T length_squared(V);           \
  T length(V);                   \
  T distance(V, V);              \
  T distance_squared(V, V);      \
  V normalize(V);
MSL_VECTORS(MSL_GEOMETRY, float, _)
MSL_VECTORS(MSL_GEOMETRY, half, _)
float3 cross(float3, float3);
half3 cross(half3, half3);

// -- simdgroups -------------------------------------------------------------------------------------------------------

// Numbers of up to 32 bits and their vectors: no bool, no bfloat, no long, no struct.
template <class T>
struct is_simd_scalar
    : bool_constant<is_arithmetic_v<T> && sizeof(T) <= 4 && !__is_same(T, bfloat) && !__is_same(T, bool)> {};
template <class T>
struct is_simd_type : is_simd_scalar<T> {};
template <class T, int N>
struct is_simd_type<vec<T, N>> : is_simd_scalar<T> {};
template <class T>
using simd_scalar = enable_if_t<is_simd_scalar<T>::value, T>;
template <class T>
using simd_value = enable_if_t<is_simd_type<T>::value, T>;

#define MSL_REDUCTION(name)      \
  template <class T>             \
  simd_scalar<T> simd_##name(T); \
  template <class T>             \
  simd_scalar<T> quad_##name(T);
MSL_REDUCTION(sum)
MSL_REDUCTION(product)
MSL_REDUCTION(min)
MSL_REDUCTION(max)
MSL_REDUCTION(and)
MSL_REDUCTION(or)
MSL_REDUCTION(xor)
MSL_REDUCTION(prefix_inclusive_sum)
MSL_REDUCTION(prefix_exclusive_sum)
MSL_REDUCTION(prefix_inclusive_product)
MSL_REDUCTION(prefix_exclusive_product)
#undef MSL_REDUCTION
#define MSL_SHUFFLE(name)               \
  template <class T>                    \
  simd_value<T> simd_##name(T, ushort); \
  template <class T>                    \
  simd_value<T> quad_##name(T, ushort);
MSL_SHUFFLE(broadcast)
MSL_SHUFFLE(shuffle)
MSL_SHUFFLE(shuffle_xor)
MSL_SHUFFLE(shuffle_up)
MSL_SHUFFLE(shuffle_down)
MSL_SHUFFLE(shuffle_rotate_up)
MSL_SHUFFLE(shuffle_rotate_down)
#undef MSL_SHUFFLE
#define MSL_FILL(name)                                  \
  template <class T>                                    \
  simd_value<T> simd_##name(T, T, ushort, ushort = 32); \
  template <class T>                                    \
  simd_value<T> quad_##name(T, T, ushort, ushort = 4);
MSL_FILL(shuffle_and_fill_up)
MSL_FILL(shuffle_and_fill_down)
#undef MSL_FILL
template <class T>
simd_value<T> simd_broadcast_first(T);
template <class T>
simd_value<T> quad_broadcast_first(T);

struct simd_vote {
  using vote_t = ulong;
  explicit operator vote_t() const;
  bool any() const;
  bool all() const;
};
simd_vote simd_ballot(bool);
simd_vote simd_active_threads_mask();
bool simd_any(bool);
bool simd_all(bool);
bool quad_any(bool);
bool quad_all(bool);
bool simd_is_first();
bool quad_is_first();
bool simd_is_helper_thread();

enum class mem_flags {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8
};
constexpr mem_flags operator|(mem_flags, mem_flags b) { return b; }
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

template <class T, int Columns = 8, int Rows = 8>
struct simdgroup_matrix {
  static_assert(is_floating_point_v<T>, "invalid element type for simdgroup_matrix");
  static_assert(Columns == 8 && Rows == 8, "simdgroup_matrix is 8x8");
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T);
  __private vec<T, 2>& thread_elements() __private;
  const __private vec<T, 2>& thread_elements() const __private;

 private:
  vec<T, 2> elements;
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <class T, int Columns = 8, int Rows = 8>
simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T);
template <class T>
void simdgroup_load(__private simdgroup_matrix<T>&, const __global T*, ulong = 8, ulong2 = ulong2(0), bool = false);
template <class T>
void simdgroup_load(__private simdgroup_matrix<T>&, const __local T*, ulong = 8, ulong2 = ulong2(0), bool = false);
template <class T>
void simdgroup_store(simdgroup_matrix<T>, __global T*, ulong = 8, ulong2 = ulong2(0), bool = false);
template <class T>
void simdgroup_store(simdgroup_matrix<T>, __local T*, ulong = 8, ulong2 = ulong2(0), bool = false);
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(__private simdgroup_matrix<D>&, simdgroup_matrix<A>, simdgroup_matrix<B>,
                                   simdgroup_matrix<C>);
template <class D, class A, class B>
void simdgroup_multiply(__private simdgroup_matrix<D>&, simdgroup_matrix<A>, simdgroup_matrix<B>);

// -- atomics ----------------------------------------------------------------------------------------------------------

enum memory_order { memory_order_relaxed };
template <class T>
struct atomic {
  static_assert(__is_same(T, int) || __is_same(T, uint) || __is_same(T, float) || __is_same(T, bool) ||
                    __is_same(T, ulong),
                "invalid type for atomic");
  atomic() = default;
  atomic(const atomic&) = delete;

 private:
  T value;
};
// OpenCL has types of these names.
using msl_atomic_int = atomic<int>;
using msl_atomic_uint = atomic<uint>;
using msl_atomic_bool = atomic<bool>;
using msl_atomic_ulong = atomic<ulong>;
using msl_atomic_float = atomic<float>;

template <class T>
using number = enable_if_t<__is_same(T, int) || __is_same(T, uint) || __is_same(T, float), T>;
template <class T>
using integer = enable_if_t<__is_same(T, int) || __is_same(T, uint), T>;
template <class T>
using ordered = enable_if_t<__is_same(T, int) || __is_same(T, uint), T>;
template <class T>
struct same {
  using type = T;
};
#define MSL_OPERAND(T) typename same<T>::type  // converts, is not deduced
#define MSL_ATOMICS(space)                                                                                          \
  template <class T>                                                                                                \
  T atomic_load_explicit(const volatile space atomic<T>*, memory_order);                                            \
  template <class T>                                                                                                \
  void atomic_store_explicit(volatile space atomic<T>*, MSL_OPERAND(T), memory_order);                              \
  template <class T>                                                                                                \
  T atomic_exchange_explicit(volatile space atomic<T>*, MSL_OPERAND(T), memory_order);                              \
  template <class T>                                                                                                \
  bool atomic_compare_exchange_weak_explicit(volatile space atomic<T>*, __private T*, MSL_OPERAND(T), memory_order, \
                                             memory_order);                                                         \
  MSL_FETCH(space, add, number)                                                                                     \
  MSL_FETCH(space, sub, number)                                                                                     \
  MSL_FETCH(space, and, integer)                                                                                    \
  MSL_FETCH(space, or, integer)                                                                                     \
  MSL_FETCH(space, xor, integer)                                                                                    \
  MSL_FETCH(space, min, ordered)                                                                                    \
  MSL_FETCH(space, max, ordered)
#define MSL_FETCH(space, name, gate) \
  template <class T>                 \
  gate<T> atomic_fetch_##name##_explicit(volatile space atomic<T>*, MSL_OPERAND(T), memory_order);
MSL_ATOMICS(__global)
MSL_ATOMICS(__local)
#undef MSL_ATOMICS
#undef MSL_FETCH
void atomic_max_explicit(volatile __global atomic<ulong>*, ulong, memory_order);
void atomic_min_explicit(volatile __global atomic<ulong>*, ulong, memory_order);
}  // namespace metal

// The compiler's own functions, with which MLX gives bfloat what Metal leaves out.
#define MSL_BUILTIN_1(name) \
  template <class T>        \
  T __metal_##name(T, bool = false);
#define MSL_BUILTIN_2(name) \
  template <class T>        \
  T __metal_##name(T, T, bool = false);
#define MSL_BUILTIN_3(name) \
  template <class T>        \
  T __metal_##name(T, T, T, bool = false);
#define MSL_BUILTIN(arity, name) MSL_BUILTIN_##arity(name)
MSL_ELEMENTARY(MSL_BUILTIN)
MSL_BUILTIN_2(nextafter)
float __metal_ldexp(float, int, bool = false);
float __metal_frexp(float, __private int*);
#define MSL_BUILTIN_SIMD(name) \
  template <class T>           \
  T __metal_simd_##name(T);
MSL_BUILTIN_SIMD(sum)
MSL_BUILTIN_SIMD(product)
MSL_BUILTIN_SIMD(min)
MSL_BUILTIN_SIMD(max)
MSL_BUILTIN_SIMD(xor)
MSL_BUILTIN_SIMD(prefix_inclusive_sum)
MSL_BUILTIN_SIMD(prefix_exclusive_sum)
MSL_BUILTIN_SIMD(prefix_inclusive_product)
MSL_BUILTIN_SIMD(prefix_exclusive_product)
#define MSL_BUILTIN_SHUFFLE(name) \
  template <class T>              \
  T __metal_simd_##name(T, ushort);
MSL_BUILTIN_SHUFFLE(broadcast)
MSL_BUILTIN_SHUFFLE(shuffle)
MSL_BUILTIN_SHUFFLE(shuffle_xor)
MSL_BUILTIN_SHUFFLE(shuffle_up)
MSL_BUILTIN_SHUFFLE(shuffle_down)
MSL_BUILTIN_SHUFFLE(shuffle_rotate_up)
MSL_BUILTIN_SHUFFLE(shuffle_rotate_down)
#define MSL_BUILTIN_FILL(name) \
  template <class T>           \
  T __metal_simd_##name(T, T, ushort, ushort);
MSL_BUILTIN_FILL(shuffle_and_fill_up)
MSL_BUILTIN_FILL(shuffle_and_fill_down)
ushort __metal_get_thread_index_in_simdgroup(ushort);
ushort __metal_get_simdgroup_size(ushort);

// What frontend.py writes for a threadgroup variable, and around the arms of `?:`.
template <class T>
__local T& msl_threadgroup_variable();
template <class T>
constexpr T msl_value(T value) {
  return value;
}
