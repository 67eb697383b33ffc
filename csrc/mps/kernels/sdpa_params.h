// What csrc/mps/sdpa.mm tells the attention kernels about a call. Read by host and shader.
#ifndef TMO_MPS_SDPA_PARAMS_H
#define TMO_MPS_SDPA_PARAMS_H

#include "common/dtype.h"

enum { kSdpaMaxSplits = 128, kSdpaDecodeThreads = 128, kSdpaReduceThreads = 128 };

struct SdpaStrides {  // in elements; the last dimension is contiguous, a broadcast one has stride 0
  int64_t batch, head, row;
};

struct SdpaParams {
  SdpaStrides query, key, value, out, mask;
  int64_t mask_key;  // the mask's stride from key to key
  int64_t sinks_stride, seqused_stride;
  int32_t Hq, Hkv, Lq, Lk, Dk, Dv;
  int32_t group;         // query heads a key head
  int32_t window;        // 0: none
  uint32_t is_causal;    // query i sees the keys up to its position
  uint32_t lower_right;  // that position is used - Lq + i instead of i
  uint32_t has_mask, mask_dtype;
  uint32_t has_sinks, sinks_dtype;
  uint32_t seqused_bits;  // 32, 64, or 0: there is none, all keys are in use
  uint32_t vectors;       // rows of query, key, value and out start at, and have, a multiple of 4 elements
  float scale, softcap;   // softcap 0: none
  int32_t splits;         // decode: the parts that the keys are divided into
  int32_t lanes;          // decode, generic: the lanes that share a key
};

#endif
