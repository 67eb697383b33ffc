// Which kernel of csrc/mps/kernels/sdpa_prefill.metal serves a call of metal::sdpa, and how its keys are split.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace tmo {

inline constexpr const char* kSdpaPrefill = "sdpa_prefill";

// A kernel serves all heads up to its sizes; rows is the height of its tiles.
struct SdpaPrefillKernel {
  int64_t Dk, Dv, simdgroups, rows, rows_f32;
};

inline constexpr std::array kSdpaPrefillKernels{
    SdpaPrefillKernel{64, 64, 4, 32, 32},   SdpaPrefillKernel{80, 80, 5, 32, 32},
    SdpaPrefillKernel{96, 96, 6, 32, 32},   SdpaPrefillKernel{112, 112, 7, 32, 32},
    SdpaPrefillKernel{128, 128, 8, 32, 32}, SdpaPrefillKernel{192, 128, 8, 32, 16},
    SdpaPrefillKernel{192, 192, 6, 32, 16}, SdpaPrefillKernel{256, 256, 8, 32, 16},
    SdpaPrefillKernel{576, 512, 8, 16, 8},
};

inline const char* sdpa_dtype_tag(at::ScalarType dtype) {
  return dtype == at::kHalf ? "f16" : dtype == at::kBFloat16 ? "bf16" : "f32";
}

struct SdpaPrefillChoice {
  std::string kernel;
  int64_t rows, simdgroups;
};

namespace sdpa_prefill_detail {

inline SdpaPrefillChoice choice(const SdpaPrefillKernel& kernel, at::ScalarType dtype) {
  return {std::string("sdpa_prefill_") + sdpa_dtype_tag(dtype) + "_dk" + std::to_string(kernel.Dk) + "_dv" +
              std::to_string(kernel.Dv),
          dtype == at::kFloat ? kernel.rows_f32 : kernel.rows, kernel.simdgroups};
}

}  // namespace sdpa_prefill_detail

// The smallest kernel that is large enough; the last one always is.
inline SdpaPrefillChoice choose_sdpa_prefill(int64_t Dk, int64_t Dv, at::ScalarType dtype) {
  const auto fits = [&](const SdpaPrefillKernel& kernel) { return Dk <= kernel.Dk && Dv <= kernel.Dv; };
  return sdpa_prefill_detail::choice(*std::find_if(kSdpaPrefillKernels.begin(), kSdpaPrefillKernels.end(), fits),
                                     dtype);
}

inline std::vector<std::string> sdpa_prefill_kernels() {
  std::vector<std::string> names;
  for (const auto& kernel : kSdpaPrefillKernels) {
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      names.push_back(std::string(kSdpaPrefill) + "/" + sdpa_prefill_detail::choice(kernel, dtype).kernel);
    }
  }
  return names;
}

// Into how many parts the keys of each tile are divided, at most `most`: until the simdgroups that the cores have room
// for have work, as long as a part keeps 256 keys, which outweigh its partial results.
inline int64_t sdpa_prefill_splits(int64_t simdgroups, int64_t keys, int64_t cores, int64_t most) {
  return std::clamp<int64_t>(std::min(32 * cores / std::max<int64_t>(simdgroups, 1), keys / 256), 1, most);
}

}  // namespace tmo
