// metal::gated_delta_rule on MPS: which kernel runs. Asking needs no device.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "gated_delta_rule.h"

namespace tmo {

inline constexpr const char* kGatedDelta = "gated_delta_rule";

// A threadgroup of `threads` threads takes `rows` rows of the state of one head.
struct GatedDeltaKernel {
  const char* prefix;
  int64_t Dk;  // exactly this, or up to it
  bool exact, chunked;
  int64_t rows, threads;
};

// The first one that fits is taken.
inline constexpr std::array kGatedDeltaKernels{
    GatedDeltaKernel{"gated_delta_rule_recurrent_dk", 64, true, false, 32, 128},
    GatedDeltaKernel{"gated_delta_rule_recurrent_dk", 128, true, false, 32, 128},
    GatedDeltaKernel{"gated_delta_rule_recurrent_dk", 256, true, false, 16, 128},
    GatedDeltaKernel{"gated_delta_rule_recurrent_upto", 64, false, false, 32, 128},
    GatedDeltaKernel{"gated_delta_rule_recurrent_upto", 128, false, false, 32, 128},
    GatedDeltaKernel{"gated_delta_rule_recurrent_upto", 256, false, false, 16, 128},
    GatedDeltaKernel{"gated_delta_rule_chunked_upto", 64, false, true, 64, 256},
    GatedDeltaKernel{"gated_delta_rule_chunked_upto", 128, false, true, 64, 256},
    GatedDeltaKernel{"gated_delta_rule_chunked_upto", 256, false, true, 64, 256},
};

inline std::string gated_delta_kernel_name(const GatedDeltaKernel& kernel, bool decay_per_channel) {
  return kernel.prefix + std::to_string(kernel.Dk) + (decay_per_channel ? "_channels" : "");
}

// Whether Metal takes the chunked kernel, whose chunks have 8 steps: from two of them on, and where as many channels as
// that leave the keys of a chunk apart.
inline bool gated_delta_in_matrices(int64_t T, int64_t Dk) { return T >= 16 && Dk >= 32; }

inline const GatedDeltaKernel& choose_gated_delta(int64_t T, int64_t Dk) {
  const bool chunked = gated_delta_in_matrices(T, Dk);
  return *std::find_if(kGatedDeltaKernels.begin(), kGatedDeltaKernels.end(), [&](const GatedDeltaKernel& kernel) {
    return kernel.chunked == chunked && (kernel.exact ? kernel.Dk == Dk : kernel.Dk >= Dk);
  });
}

// Every kernel that a call can run, as library/kernel.
inline std::vector<std::string> gated_delta_rule_kernels() {
  std::vector<std::string> names;
  for (const auto& kernel : kGatedDeltaKernels) {
    for (bool channels : {false, true}) {
      names.push_back(std::string(kGatedDelta) + "/" + gated_delta_kernel_name(kernel, channels));
    }
  }
  return names;
}

// The kernels count heads in 32 bits; steps and offsets have 64.
inline void check_gated_delta_counts(const GatedDeltaShape<int64_t>& s) {
  const int64_t largest = std::max(s.B, s.Hv);
  TORCH_CHECK_NOT_IMPLEMENTED(largest < (int64_t(1) << 31),
                              "gated_delta_rule: B and Hv must each be below 2^31 on MPS, got ", largest,
                              ". Split the call.");
}

}  // namespace tmo
