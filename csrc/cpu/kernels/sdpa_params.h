// What csrc/cpu/sdpa.cpp tells the attention kernels, and how much scratch memory they need. Compiled once.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace tmo::cpu {

struct SdpaStrides {  // in elements; the last dimension is contiguous
  int64_t batch, head, row;
};

struct SdpaParams {
  const void *query, *key, *value;
  void* out;
  const void* mask;     // [B, Hq, Lq, Lk] through its strides
  const float* sinks;   // [Hq] or null
  const int64_t* used;  // [B]: how many keys are in use
  SdpaStrides query_strides, key_strides, value_strides, out_strides, mask_strides;
  int64_t mask_key_stride;
  int64_t group;  // query heads a key head
  int64_t Lq, Dk, Dv;
  int64_t window;  // 0: none
  bool is_causal;
  bool lower_right;  // query i stands at used - Lq + i instead of at i
  float scale, softcap;
  bool has_mask;
  Dtype mask_dtype;
};

// The unit of work: some query rows of one batch and key head against some keys. Row r of a key head is query
// r / group of query head kv_head * group + r % group, so that the rows of a tile stand close to each other.
struct SdpaItem {
  int64_t batch, kv_head, row_begin, row_end, key_begin, key_end;
  float* partial;  // where maximum, sum and weighted values of each row go, or null: the rows are finished
};

// A row of partial results: maximum, sum, then Dv values.
inline int64_t sdpa_partial_row(const SdpaParams& p) { return p.Dv + 2; }

// Up to this many rows the decode kernel runs, above it the tile kernel.
constexpr int64_t kSdpaDecodeRows = 8;
constexpr int64_t kSdpaDecodeKeys = 64;  // keys whose scores are held at a time
constexpr int64_t kSdpaTileRows = 64;
constexpr int64_t kSdpaTileKeys = 96;
constexpr int64_t kSdpaPad = 16;  // floats: the widest vector

inline int64_t sdpa_padded(int64_t size) { return (size + kSdpaPad - 1) / kSdpaPad * kSdpaPad; }

// Floats of scratch memory a thread.
inline int64_t sdpa_scratch(const SdpaParams& p) {
  const int64_t Dk = sdpa_padded(p.Dk), Dv = sdpa_padded(p.Dv);
  const int64_t row = kSdpaTileRows + kSdpaPad;
  return row * (Dk + 2 * kSdpaTileKeys + Dv) + kSdpaTileKeys * (Dk + Dv + 2 * kSdpaPad);
}

}  // namespace tmo::cpu
