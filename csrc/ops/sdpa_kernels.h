// metal::sdpa on MPS: which kernels run. Asking needs no device.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sdpa.h"
#include "sdpa_prefill_kernels.h"

namespace tmo {

inline constexpr const char* kSdpaDecode = "sdpa_decode";

// rows: how many query rows share what a threadgroup reads.
struct SdpaDecodeKernel {
  int64_t Dk, Dv, rows;
};

// For these head sizes exactly, with rows that can be read in vectors.
inline constexpr std::array kSdpaDecodeKernels{
    SdpaDecodeKernel{64, 64, 4},   SdpaDecodeKernel{80, 80, 4},   SdpaDecodeKernel{96, 96, 4},
    SdpaDecodeKernel{112, 112, 4}, SdpaDecodeKernel{128, 128, 4}, SdpaDecodeKernel{192, 192, 4},
    SdpaDecodeKernel{192, 128, 4}, SdpaDecodeKernel{256, 256, 4}, SdpaDecodeKernel{576, 512, 2},
};

// For head sizes up to these, element by element.
inline constexpr std::array kSdpaDecodeAnyKernels{SdpaDecodeKernel{256, 256, 4}, SdpaDecodeKernel{576, 512, 2}};

struct SdpaDecodeChoice {
  std::string kernel;
  int64_t rows;
  int64_t lanes;  // that share a key, where the kernel leaves it open
};

namespace sdpa_decode_detail {

inline std::string name(const char* prefix, const SdpaDecodeKernel& kernel, at::ScalarType dtype) {
  return std::string(prefix) + sdpa_dtype_tag(dtype) + "_dk" + std::to_string(kernel.Dk) + "_dv" +
         std::to_string(kernel.Dv);
}

// As few lanes as have room for a key and a value among them.
inline int64_t lanes(const SdpaDecodeKernel& kernel, int64_t Dk, int64_t Dv) {
  int64_t lanes = 1;
  while (lanes * ((kernel.Dk + 31) / 32) < Dk || lanes * ((kernel.Dv + 31) / 32) < Dv) lanes *= 2;
  return lanes;
}

}  // namespace sdpa_decode_detail

inline SdpaDecodeChoice choose_sdpa_decode(int64_t Dk, int64_t Dv, at::ScalarType dtype, bool vectors) {
  using namespace sdpa_decode_detail;
  for (const auto& kernel : kSdpaDecodeKernels) {
    if (vectors && kernel.Dk == Dk && kernel.Dv == Dv) return {name("sdpa_decode_", kernel, dtype), kernel.rows, 0};
  }
  const auto& kernel = kSdpaDecodeAnyKernels[Dk > kSdpaDecodeAnyKernels[0].Dk || Dv > kSdpaDecodeAnyKernels[0].Dv];
  return {name("sdpa_decode_any_", kernel, dtype), kernel.rows, lanes(kernel, Dk, Dv)};
}

inline std::string sdpa_reduce_kernel(at::ScalarType dtype) {
  return std::string("sdpa_decode_reduce_") + sdpa_dtype_tag(dtype);
}

// Whether the rows of a key head are so few that one tile of the decode kernel has them all. More go to matrices, which
// read each key once for all of them, too.
inline bool sdpa_decodes(int64_t rows, const SdpaDecodeChoice& choice) { return rows <= choice.rows; }

// Into how many parts the keys are divided: enough to fill the GPU twice with threadgroups of four simdgroups, each
// with at least 64 keys.
inline int64_t sdpa_decode_splits(int64_t threadgroups, int64_t keys, int64_t cores, int64_t most) {
  return std::clamp<int64_t>(std::min(12 * cores / std::max<int64_t>(threadgroups, 1), keys / 64), 1, most);
}

// Every kernel that a call can run, as library/kernel.
inline std::vector<std::string> sdpa_kernels() {
  std::vector<std::string> names = sdpa_prefill_kernels();
  const std::string decode = std::string(kSdpaDecode) + "/";
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto& kernel : kSdpaDecodeKernels) {
      names.push_back(decode + sdpa_decode_detail::name("sdpa_decode_", kernel, dtype));
    }
    for (const auto& kernel : kSdpaDecodeAnyKernels) {
      names.push_back(decode + sdpa_decode_detail::name("sdpa_decode_any_", kernel, dtype));
    }
    names.push_back(decode + sdpa_reduce_kernel(dtype));
  }
  return names;
}

// The kernels count in 32 bits, and a little beyond the end; offsets have 64.
inline void check_sdpa_counts(const SdpaShape<int64_t>& s) {
  const int64_t largest = std::max({s.B, s.Hq * s.Lq, s.Lk});
  TORCH_CHECK_NOT_IMPLEMENTED(largest < (int64_t(1) << 30),
                              "sdpa: B, Hq*Lq and Lk must each be below 2^30 on MPS, got ", largest,
                              ". Split the call.");
}

}  // namespace tmo
