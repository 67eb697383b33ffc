// metal::gather_qmv on MPS: which kernels run. Asking needs no device.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gather_qmv.h"

namespace tmo {

constexpr const char* kGatherQmvDecode = "gather_qmv";
constexpr const char* kGatherQmvGrouped = "gather_qmv_grouped";

// Whether the pairs, each a row of x with one of its experts, are grouped by expert. Up to four of an expert, on
// average, reading its weights for each costs less than the tiles that 8 x 8 matrices fill to the half.
inline bool gather_qmv_groups(int64_t pairs, int64_t E) { return E > 0 && pairs >= std::max<int64_t>(8, 4 * E); }

inline std::string gather_qmv_decode_kernel(int64_t bits) { return "gather_qmv_decode_b" + std::to_string(bits); }
inline std::string gather_qmv_tile_kernel(int64_t bits) { return "gather_qmv_tile_b" + std::to_string(bits); }

// Every kernel that a call can run, as library/kernel.
inline std::vector<std::string> gather_qmv_kernels() {
  const std::string decode = std::string(kGatherQmvDecode) + "/", grouped = std::string(kGatherQmvGrouped) + "/";
  std::vector<std::string> names;
  for (const char* name : {"gather_qmv_clear", "gather_qmv_count", "gather_qmv_start", "gather_qmv_sort"}) {
    names.push_back(grouped + name);
  }
  for (int64_t bits : kQuantizedBits) {
    names.push_back(decode + gather_qmv_decode_kernel(bits));
    names.push_back(grouped + gather_qmv_tile_kernel(bits));
  }
  return names;
}

// The kernels count in 32 bits; offsets have 64.
inline void check_gather_qmv_counts(int64_t pairs, const GatherQmvShape<int64_t>& s) {
  const int64_t largest = std::max({pairs, s.E, s.N, s.K});
  TORCH_CHECK_NOT_IMPLEMENTED(largest < (int64_t(1) << 31),
                              "gather_qmv: rows, E, N and K must each be below 2^31 on MPS, got ", largest,
                              ". Split the call.");
}

}  // namespace tmo
