// Vectors of two, three and four components with swizzles. A three-component vector is as large as a four-component
// one; packed vectors have no padding and the alignment of a component.
#pragma once
#include "types.h"

namespace metal {

template <class T, int N>
struct vec;

// A view of some components of the vector whose storage it shares.
template <class T, int... I>
struct swizzle {
  using plain = vec<T, sizeof...(I)>;
  static constexpr int extent = [] {
    int largest = 0;
    ((largest = I > largest ? I : largest), ...);
    return largest + 1;
  }();
  T data[extent];

  swizzle() = default;
  swizzle(const swizzle&) = default;
  MSL_FUNCTION operator plain() const { return plain(data[I]...); }
  MSL_FUNCTION swizzle& operator=(plain v) {
    int from = 0;
    ((data[I] = v.data[from++]), ...);
    return *this;
  }
  // Not the default: that would copy the components between the chosen ones too.
  MSL_FUNCTION swizzle& operator=(const swizzle& v) { return *this = plain(v); }
  MSL_FUNCTION T operator[](int i) const { return plain(*this).data[i]; }
  MSL_FUNCTION swizzle& operator+=(plain v) { return *this = plain(*this) + v; }
  MSL_FUNCTION swizzle& operator-=(plain v) { return *this = plain(*this) - v; }
  MSL_FUNCTION swizzle& operator*=(plain v) { return *this = plain(*this) * v; }
  MSL_FUNCTION swizzle& operator/=(plain v) { return *this = plain(*this) / v; }
};

// M(name, index, ...) for each component.
#define MSL_EACH_2(M, ...) M(x, 0, __VA_ARGS__) M(y, 1, __VA_ARGS__)
#define MSL_EACH_3(M, ...) MSL_EACH_2(M, __VA_ARGS__) M(z, 2, __VA_ARGS__)
#define MSL_EACH_4(M, ...) MSL_EACH_3(M, __VA_ARGS__) M(w, 3, __VA_ARGS__)
// The same again: a macro does not expand inside itself.
#define MSL_AGAIN_2(M, ...) M(x, 0, __VA_ARGS__) M(y, 1, __VA_ARGS__)
#define MSL_AGAIN_3(M, ...) MSL_AGAIN_2(M, __VA_ARGS__) M(z, 2, __VA_ARGS__)
#define MSL_AGAIN_4(M, ...) MSL_AGAIN_3(M, __VA_ARGS__) M(w, 3, __VA_ARGS__)
#define MSL_THIRD_2(M, ...) M(x, 0, __VA_ARGS__) M(y, 1, __VA_ARGS__)
#define MSL_THIRD_3(M, ...) MSL_THIRD_2(M, __VA_ARGS__) M(z, 2, __VA_ARGS__)
#define MSL_THIRD_4(M, ...) MSL_THIRD_3(M, __VA_ARGS__) M(w, 3, __VA_ARGS__)
#define MSL_FOURTH_2(M, ...) M(x, 0, __VA_ARGS__) M(y, 1, __VA_ARGS__)
#define MSL_FOURTH_3(M, ...) MSL_FOURTH_2(M, __VA_ARGS__) M(z, 2, __VA_ARGS__)
#define MSL_FOURTH_4(M, ...) MSL_FOURTH_3(M, __VA_ARGS__) M(w, 3, __VA_ARGS__)

#define MSL_SWIZZLE_4(d, l, c, k, b, j, a, i) swizzle<T, i, j, k, l> a##b##c##d;
#define MSL_SWIZZLE_3(c, k, b, j, a, i, N) \
  swizzle<T, i, j, k> a##b##c;             \
  MSL_FOURTH_##N(MSL_SWIZZLE_4, c, k, b, j, a, i)
#define MSL_SWIZZLE_2(b, j, a, i, N) \
  swizzle<T, i, j> a##b;             \
  MSL_THIRD_##N(MSL_SWIZZLE_3, b, j, a, i, N)
#define MSL_SWIZZLE_1(a, i, N) MSL_AGAIN_##N(MSL_SWIZZLE_2, a, i, N)

#define MSL_VECTOR_MEMBERS(N)                                                 \
  using element_type = T;                                                     \
  static constexpr int size = N;                                              \
  vec() = default;                                                            \
  MSL_FUNCTION vec& operator=(const vec& v) {                                 \
    for (int i = 0; i < N; i++) data[i] = v.data[i];                          \
    return *this;                                                             \
  }                                                                           \
  template <class U>                                                          \
    requires(!__is_same(U, T))                                                \
  MSL_FUNCTION explicit vec(const vec<U, N>& v) {                             \
    for (int i = 0; i < N; i++) data[i] = static_cast<T>(v.data[i]);          \
  }                                                                           \
  template <class U, int... I>                                                \
    requires(sizeof...(I) == N && !__is_same(U, T))                           \
  MSL_FUNCTION explicit vec(const swizzle<U, I...>& v) : vec(vec<U, N>(v)) {} \
  MSL_FUNCTION T& operator[](int i) { return data[i]; }                       \
  MSL_FUNCTION const T& operator[](int i) const { return data[i]; }

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  union {
    T data[2];
    struct {
      T x, y;
    };
    struct {
      T r, g;
    };
    MSL_EACH_2(MSL_SWIZZLE_1, 2)
  };
  MSL_VECTOR_MEMBERS(2)
  // Written out, so that check mode sees a misaligned source, which a copy of bytes would hide.
  MSL_FUNCTION constexpr vec(const vec& v) : x(v.x), y(v.y) {}
  MSL_FUNCTION constexpr vec(T s) : x(s), y(s) {}
  MSL_FUNCTION constexpr vec(T a, T b) : x(a), y(b) {}
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  union {
    T data[3];
    struct {
      T x, y, z;
    };
    struct {
      T r, g, b;
    };
    swizzle<T, 0, 1, 2> rgb;
    MSL_EACH_3(MSL_SWIZZLE_1, 3)
  };
  MSL_VECTOR_MEMBERS(3)
  MSL_FUNCTION constexpr vec(const vec& v) : x(v.x), y(v.y), z(v.z) {}
  MSL_FUNCTION constexpr vec(T s) : x(s), y(s), z(s) {}
  MSL_FUNCTION constexpr vec(T a, T b, T c) : x(a), y(b), z(c) {}
  MSL_FUNCTION vec(vec<T, 2> a, T b) : x(a.x), y(a.y), z(b) {}
  MSL_FUNCTION vec(T a, vec<T, 2> b) : x(a), y(b.x), z(b.y) {}
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    T data[4];
    struct {
      T x, y, z, w;
    };
    struct {
      T r, g, b, a;
    };
    swizzle<T, 0, 1, 2> rgb;
    MSL_EACH_4(MSL_SWIZZLE_1, 4)
  };
  MSL_VECTOR_MEMBERS(4)
  MSL_FUNCTION constexpr vec(const vec& v) : x(v.x), y(v.y), z(v.z), w(v.w) {}
  MSL_FUNCTION constexpr vec(T s) : x(s), y(s), z(s), w(s) {}
  MSL_FUNCTION constexpr vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  MSL_FUNCTION vec(vec<T, 2> a, vec<T, 2> b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
  MSL_FUNCTION vec(vec<T, 2> a, T b, T c) : x(a.x), y(a.y), z(b), w(c) {}
  MSL_FUNCTION vec(T a, vec<T, 2> b, T c) : x(a), y(b.x), z(b.y), w(c) {}
  MSL_FUNCTION vec(T a, T b, vec<T, 2> c) : x(a), y(b), z(c.x), w(c.y) {}
  MSL_FUNCTION vec(vec<T, 3> a, T b) : x(a.x), y(a.y), z(a.z), w(b) {}
  MSL_FUNCTION vec(T a, vec<T, 3> b) : x(a), y(b.x), z(b.y), w(b.z) {}
};

template <class T, int N>
struct packed_vec;

#define MSL_PACKED_MEMBERS(N)                           \
  packed_vec() = default;                               \
  MSL_FUNCTION packed_vec(vec<T, N> v) {                \
    for (int i = 0; i < N; i++) (*this)[i] = v.data[i]; \
  }                                                     \
  MSL_FUNCTION operator vec<T, N>() const {             \
    vec<T, N> v;                                        \
    for (int i = 0; i < N; i++) v.data[i] = (*this)[i]; \
    return v;                                           \
  }                                                     \
  MSL_FUNCTION T& operator[](int i) { return (&x)[i]; } \
  MSL_FUNCTION const T& operator[](int i) const { return (&x)[i]; }
template <class T>
struct packed_vec<T, 2> {
  T x, y;
  MSL_PACKED_MEMBERS(2)
  MSL_FUNCTION packed_vec(T a, T b) : x(a), y(b) {}
};
template <class T>
struct packed_vec<T, 3> {
  T x, y, z;
  MSL_PACKED_MEMBERS(3)
  MSL_FUNCTION packed_vec(T a, T b, T c) : x(a), y(b), z(c) {}
};
template <class T>
struct packed_vec<T, 4> {
  T x, y, z, w;
  MSL_PACKED_MEMBERS(4)
  MSL_FUNCTION packed_vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
};

// The vector type that a vector, a swizzle or a packed vector stands for in an expression; void for anything else.
template <class T>
struct plain_vector {
  using type = void;
};
template <class T, int N>
struct plain_vector<vec<T, N>> {
  using type = vec<T, N>;
};
template <class T, int... I>
struct plain_vector<swizzle<T, I...>> {
  using type = vec<T, sizeof...(I)>;
};
template <class T, int N>
struct plain_vector<packed_vec<T, N>> {
  using type = vec<T, N>;
};
template <class T>
using plain_vector_t = typename plain_vector<T>::type;
template <class T>
inline constexpr bool is_vector_v = !__is_void(plain_vector_t<T>);

// The vector type of an operation: scalars are spread, two vectors must agree.
template <class A, class B>
using operand_t = conditional_t<is_vector_v<A>, plain_vector_t<A>, plain_vector_t<B>>;
template <class A, class B>
concept vector_operands =
    (is_vector_v<A> || is_vector_v<B>) && __is_convertible(A, operand_t<A, B>) && __is_convertible(B, operand_t<A, B>);

#define MSL_BINARY(op)                                                   \
  template <class A, class B>                                            \
    requires vector_operands<A, B>                                       \
  MSL_FUNCTION operand_t<A, B> operator op(const A& a, const B& b) {     \
    operand_t<A, B> u = a, v = b;                                        \
    for (int i = 0; i < u.size; i++) u.data[i] = u.data[i] op v.data[i]; \
    return u;                                                            \
  }                                                                      \
  template <class T, int N, class B>                                     \
    requires vector_operands<vec<T, N>, B>                               \
  MSL_FUNCTION vec<T, N>& operator op## = (vec<T, N> & a, const B& b) {  \
    return a = a op b;                                                   \
  }
MSL_BINARY(+)
MSL_BINARY(-)
MSL_BINARY(*)
MSL_BINARY(/)
MSL_BINARY(%)
MSL_BINARY(&)
MSL_BINARY(|)
MSL_BINARY(^)
MSL_BINARY(<<)
MSL_BINARY(>>)
#undef MSL_BINARY

#define MSL_COMPARISON(op)                                                            \
  template <class A, class B>                                                         \
    requires vector_operands<A, B>                                                    \
  MSL_FUNCTION vec<bool, operand_t<A, B>::size> operator op(const A& a, const B& b) { \
    operand_t<A, B> u = a, v = b;                                                     \
    vec<bool, operand_t<A, B>::size> result;                                          \
    for (int i = 0; i < u.size; i++) result.data[i] = u.data[i] op v.data[i];         \
    return result;                                                                    \
  }
MSL_COMPARISON(<)
MSL_COMPARISON(>)
MSL_COMPARISON(<=)
MSL_COMPARISON(>=)
MSL_COMPARISON(==)
MSL_COMPARISON(!=)
MSL_COMPARISON(&&)
MSL_COMPARISON(||)
#undef MSL_COMPARISON

#define MSL_PREFIX(op)                                         \
  template <class A>                                           \
    requires is_vector_v<A>                                    \
  MSL_FUNCTION plain_vector_t<A> operator op(const A& a) {     \
    plain_vector_t<A> v = a;                                   \
    for (int i = 0; i < v.size; i++) v.data[i] = op v.data[i]; \
    return v;                                                  \
  }
MSL_PREFIX(-)
MSL_PREFIX(~)
MSL_PREFIX(!)
#undef MSL_PREFIX

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
MSL_SCALARS(MSL_NAMES)
MSL_NAMES(bool)
MSL_NAMES(bfloat)
#undef MSL_NAMES

static_assert(sizeof(float3) == 16 && alignof(float3) == 16 && sizeof(packed_half3) == 6 && alignof(half4) == 8);

// The same bits as another type of the same size.
template <class T, class U>
MSL_FUNCTION constexpr T as_type(U value) {
  if constexpr (metal::is_vector_v<U> && !__is_same(U, metal::plain_vector_t<U>)) {
    return as_type<T>(metal::plain_vector_t<U>(value));
  } else {
    static_assert(sizeof(T) == sizeof(U), "as_type needs types of one size");
    if constexpr (__is_trivially_copyable(T) && __is_trivially_copyable(U)) {
      return __builtin_bit_cast(T, value);
    } else {
      T result;
      __builtin_memcpy(&result, &value, sizeof(T));
      return result;
    }
  }
}
namespace metal {
using ::as_type;
}
