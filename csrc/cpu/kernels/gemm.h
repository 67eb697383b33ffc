// Small float32 matrix products for operands that are in cache: tiles of attention, of experts, of chunks.
#pragma once

#include "simd.h"

namespace tmo::cpu::TMO_ISA {

// A register tile of kTileRows x kTileVectors accumulators: as many as leave room for one row of B and one element of
// A among the 16 (AVX2, SSE2) or 32 (AVX-512, NEON) vector registers.
#if defined(TMO_AVX512)
constexpr int kTileRows = 8, kTileVectors = 3;
#elif defined(__aarch64__)
constexpr int kTileRows = 6, kTileVectors = 4;
#else
constexpr int kTileRows = 6, kTileVectors = 2;
#endif

// The number of floats that a row of B and C must have room for: N rounded up to whole vectors.
TMO_INLINE int64_t padded(int64_t N) { return (N + kLanes - 1) / kLanes * kLanes; }

enum class Layout { rows, columns };  // where A[m, k] is: at A[m * lda + k] or at A[k * lda + m]

template <int kRows, int kVectors, bool kAccumulate, Layout kA>
TMO_INLINE void gemm_tile(int64_t K, const float* A, int64_t lda, const float* B, int64_t ldb, float* C, int64_t ldc) {
  f32v acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) acc[i][j] = f32v{};
  }
  for (int64_t k = 0; k < K; ++k) {
    f32v b[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) b[j] = load(B + k * ldb + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const f32v a = splat(kA == Layout::rows ? A[i * lda + k] : A[k * lda + i]);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) acc[i][j] += a * b[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      float* to = C + i * ldc + j * kLanes;
      store(to, kAccumulate ? load(to) + acc[i][j] : acc[i][j]);
    }
  }
}

// The last rows, fewer than kRows.
template <int kRows, int kVectors, bool kAccumulate, Layout kA>
TMO_INLINE void gemm_rows(int64_t M, int64_t K, const float* A, int64_t lda, const float* B, int64_t ldb, float* C,
                          int64_t ldc) {
  if constexpr (kRows > 0) {
    if (M == kRows) {
      gemm_tile<kRows, kVectors, kAccumulate, kA>(K, A, lda, B, ldb, C, ldc);
    } else {
      gemm_rows<kRows - 1, kVectors, kAccumulate, kA>(M, K, A, lda, B, ldb, C, ldc);
    }
  }
}

template <int kVectors, bool kAccumulate, Layout kA>
void gemm_columns(int64_t M, int64_t K, const float* A, int64_t lda, const float* B, int64_t ldb, float* C,
                  int64_t ldc) {
  const int64_t step = kA == Layout::rows ? lda : 1;
  int64_t m = 0;
  for (; m + kTileRows <= M; m += kTileRows) {
    gemm_tile<kTileRows, kVectors, kAccumulate, kA>(K, A + m * step, lda, B, ldb, C + m * ldc, ldc);
  }
  gemm_rows<kTileRows - 1, kVectors, kAccumulate, kA>(M - m, K, A + m * step, lda, B, ldb, C + m * ldc, ldc);
}

// C[M, N] = A[M, K] B[K, N], or += with kAccumulate. Row-major (A transposed with Layout::columns); the rows of B and C
// are read and written up to padded(N) floats. Each element of the product is summed over k in order, whatever M and N
// are, and then added to C: long sums are the more exact, the shorter the K of a call.
template <bool kAccumulate, Layout kA = Layout::rows>
void gemm(int64_t M, int64_t N, int64_t K, const float* A, int64_t lda, const float* B, int64_t ldb, float* C,
          int64_t ldc) {
  constexpr int64_t kStep = kTileVectors * kLanes;
  int64_t n = 0;
  for (; n + kStep <= N; n += kStep) gemm_columns<kTileVectors, kAccumulate, kA>(M, K, A, lda, B + n, ldb, C + n, ldc);
  for (; n < N; n += kLanes) gemm_columns<1, kAccumulate, kA>(M, K, A, lda, B + n, ldb, C + n, ldc);
}

}  // namespace tmo::cpu::TMO_ISA
