// <metal_simdgroup_matrix>: 8x8 matrices held by a simdgroup, two elements of a row in each lane. Which lane holds
// which element is not documented by Apple but used by shipped kernels (MLX's and PyTorch's attention).
#pragma once
#include "simd.h"

namespace msl {

template <class T>
concept matrix_type = metal::is_floating_point_v<T>;

MSL_FUNCTION u32 matrix_row(u32 lane) { return (lane / 4 & 4) + lane / 2 % 4; }
MSL_FUNCTION u32 matrix_column(u32 lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

// What a lane brings to a product, widened: its two elements of each factor.
struct Factors {
  float a[2], b[2];
};
struct Product {
  float a[8][8], b[8][8];
};

inline void gather_factors(Simdgroup& s, u32 active) {
  auto& all = *shared<Product>(s);
  for (u32 lane = 0; lane < s.size; lane++) {
    if (!(active >> lane & 1)) continue;
    const auto& own = slot<Factors>(s.lanes[lane]);
    u32 row = matrix_row(lane), column = matrix_column(lane);
    for (u32 i = 0; i < 2; i++) {
      all.a[row][column + i] = own.a[i];
      all.b[row][column + i] = own.b[i];
    }
  }
}

}  // namespace msl

namespace metal {

template <class T, int Columns = 8, int Rows = 8>
struct simdgroup_matrix {
  static_assert(msl::matrix_type<T>, "simdgroup_matrix: the element type must be half, bfloat or float");
  static_assert(Columns == 8 && Rows == 8, "simdgroup_matrix: only 8x8");
  using storage_type = vec<T, 2>;
  storage_type elements;

  simdgroup_matrix() = default;
  MSL_FUNCTION explicit simdgroup_matrix(T diagonal) {
    uint row = msl::matrix_row(msl_lane->index), column = msl::matrix_column(msl_lane->index);
    for (uint i = 0; i < 2; i++) elements[i] = row == column + i ? diagonal : T(0);
  }
  MSL_FUNCTION storage_type& thread_elements() { return elements; }
  MSL_FUNCTION const storage_type& thread_elements() const { return elements; }
};

using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <class T, int Columns = 8, int Rows = 8>
MSL_FUNCTION simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> m;
  m.elements = vec<T, 2>(value);
  return m;
}

// The element (row, column) of a matrix whose origin is (x, y) = (column, row) in memory.
MSL_FUNCTION ulong matrix_offset(uint i, ulong stride, ulong2 origin, bool transpose) {
  ulong row = msl::matrix_row(msl_lane->index), column = msl::matrix_column(msl_lane->index) + i;
  return transpose ? (origin.y + column) * stride + origin.x + row : (origin.y + row) * stride + origin.x + column;
}
template <class T>
MSL_FUNCTION void simdgroup_load(simdgroup_matrix<T>& m, const T* source, ulong elements_per_row = 8,
                                 ulong2 origin = ulong2(0), bool transpose = false) {
  for (uint i = 0; i < 2; i++) m.elements[i] = source[matrix_offset(i, elements_per_row, origin, transpose)];
}
template <class T>
MSL_FUNCTION void simdgroup_store(const simdgroup_matrix<T>& m, T* destination, ulong elements_per_row = 8,
                                  ulong2 origin = ulong2(0), bool transpose = false) {
  for (uint i = 0; i < 2; i++) destination[matrix_offset(i, elements_per_row, origin, transpose)] = m.elements[i];
}

template <class D, class A, class B, class C>
MSL_FUNCTION void simdgroup_multiply_accumulate(simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a,
                                                const simdgroup_matrix<B>& b, const simdgroup_matrix<C>& c, MSL_PLACE) {
  auto& own = msl::slot<msl::Factors>(*msl_lane);
  for (int i = 0; i < 2; i++) {
    own.a[i] = static_cast<float>(a.elements[i]);
    own.b[i] = static_cast<float>(b.elements[i]);
  }
  msl_wait(&msl::gather_factors, msl::Wait::matrix, 0, "simdgroup_multiply_accumulate", file_, line_);
  const auto& all = *msl::shared<msl::Product>(*msl_lane->simdgroup);
  uint row = msl::matrix_row(msl_lane->index), column = msl::matrix_column(msl_lane->index);
  for (uint i = 0; i < 2; i++) {
    float sum = static_cast<float>(c.elements[i]);
    for (uint k = 0; k < 8; k++) sum += all.a[row][k] * all.b[k][column + i];
    d.elements[i] = static_cast<D>(sum);
  }
}
template <class D, class A, class B>
MSL_FUNCTION void simdgroup_multiply(simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a, const simdgroup_matrix<B>& b,
                                     MSL_PLACE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D>(D(0)), file_, line_);
}

}  // namespace metal
