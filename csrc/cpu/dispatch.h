// Which build of the kernels runs: one table of functions an instruction set, chosen once a process.
#pragma once

#include "kernels/gated_delta_rule_params.h"
#include "kernels/gather_qmv_params.h"
#include "kernels/sdpa_params.h"

namespace tmo::cpu {

// The work of the ops on one thread, over a range of items; csrc/cpu/<op>.cpp divides the items among threads.
struct Kernels {
  // By Dtype of query.
  void (*sdpa[3])(const SdpaParams&, const SdpaItem&, float* scratch);
  void (*sdpa_merge[3])(const SdpaParams&, const SdpaItem&, int64_t chunks, int64_t chunk_stride, float* scratch);
  void (*gather_qmv)(const GatherQmvParams& p, const GatherQmvTile& tile, int64_t n_begin, int64_t n_end,
                     float* scratch);
  int64_t (*gather_qmv_scratch)(const GatherQmvParams& p);
  void (*gated_delta_recurrent)(const GatedDeltaParams&, const GatedDeltaRows&, float* scratch);
  void (*gated_delta_chunked)(const GatedDeltaParams&, const GatedDeltaRows&, float* scratch);
};

// Each is defined in isa/<name>.cpp from the same source, csrc/cpu/kernels/.
namespace base {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}

// The widest that this machine and torch's own choice (ATEN_CPU_CAPABILITY) allow.
const Kernels& kernels();

}  // namespace tmo::cpu
