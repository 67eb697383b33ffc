// Scaled dot product attention with an online softmax, for one unit of work (csrc/cpu/sdpa.cpp divides a call).
#pragma once

#include "sdpa_decode.h"
#include "sdpa_prefill.h"

namespace tmo::cpu::TMO_ISA {

template <class T>
void sdpa(const SdpaParams& p, const SdpaItem& item, float* scratch) {
  if (item.row_end - item.row_begin <= kSdpaDecodeRows) {
    sdpa_decode<T>(p, item, scratch);
  } else {
    sdpa_prefill<T>(p, item, scratch);
  }
}

}  // namespace tmo::cpu::TMO_ISA
