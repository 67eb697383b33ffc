// Every kernel for one instruction set, as one table. Included by csrc/cpu/isa/<isa>.cpp.
#pragma once

#include "gated_delta_chunked.h"
#include "gated_delta_recurrent.h"
#include "gather_qmv.h"
#include "sdpa.h"

namespace tmo::cpu::TMO_ISA {

const Kernels kernels{
    .sdpa = {sdpa<float>, sdpa<c10::Half>, sdpa<c10::BFloat16>},
    .sdpa_merge = {sdpa_merge<float>, sdpa_merge<c10::Half>, sdpa_merge<c10::BFloat16>},
    .gather_qmv = gather_qmv,
    .gather_qmv_scratch = gather_qmv_scratch,
    .gated_delta_recurrent = gated_delta_recurrent,
    .gated_delta_chunked = gated_delta_chunked,
};

}  // namespace tmo::cpu::TMO_ISA
