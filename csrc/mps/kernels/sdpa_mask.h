// What attention kernels share: which keys a query sees, and what becomes of a score.
//
// A key is hidden from a query that stands outside its range (keys in use, causal, window) and where the mask is False
// or -inf. Everything else is an ordinary score, however low it is.
#ifndef TMO_MPS_SDPA_MASK_H
#define TMO_MPS_SDPA_MASK_H

#include <metal_stdlib>

#include "common/any_float.h"
#include "sdpa_params.h"

struct KeyRange {
  int begin, end;
};

// The number of keys in use of a batch.
inline int used_keys(constant SdpaParams& p, device const void* seqused, int batch) {
  if (p.seqused_bits == 0) return p.Lk;
  const long at = long(batch) * p.seqused_stride;
  long used = 0;
  if (p.seqused_bits == 64) {
    used = static_cast<device const long*>(seqused)[at];
  } else {
    used = long(static_cast<device const int*>(seqused)[at]);
  }
  return used < 0 ? 0 : used < long(p.Lk) ? int(used) : p.Lk;
}

// The keys that a query sees, the mask aside. From query to query neither end moves back, so that rows first to last
// see keys from keys_of_query(first).begin to keys_of_query(last).end at most.
inline KeyRange keys_of_query(constant SdpaParams& p, int used, int query) {
  KeyRange keys;
  keys.begin = 0;
  keys.end = used;
  if (p.is_causal == 0) return keys;
  const int position = (p.lower_right != 0 ? used - p.Lq : 0) + query;
  keys.end = position < 0 ? 0 : position < used ? position + 1 : used;
  if (p.window != 0 && position >= p.window) keys.begin = position - p.window + 1;
  keys.begin = keys.begin < keys.end ? keys.begin : keys.end;
  return keys;
}

// Where the mask of a query starts. With `+ key * p.mask_key` it is the place of its entry for a key.
inline long mask_row(constant SdpaParams& p, int batch, int head, int query) {
  return long(batch) * p.mask.batch + long(head) * p.mask.head + long(query) * p.mask.row;
}

// An entry of the mask as a number to add: a False is -inf.
inline float mask_at(constant SdpaParams& p, device const void* mask, long at) {
  if (p.mask_dtype == kBool) return static_cast<device const uchar*>(mask)[at] != 0 ? 0.0f : -INFINITY;
  return load_float(mask, at, p.mask_dtype);
}

// The product of query and key, scaled, to what the softmax is taken of. `bias` is -inf where the key is hidden: a NaN
// that is hidden goes.
inline float final_score(constant SdpaParams& p, float product, float bias) {
  float score = product;
  // The fast tanh overflows to NaN.
  if (p.softcap > 0.0f) score = p.softcap * metal::precise::tanh(score / p.softcap);
  return bias == -INFINITY ? bias : score + bias;
}

// e^x of a difference of scores. exp2 is what the hardware has.
inline float weight_of(float x) { return metal::exp2(x * M_LOG2E_F); }

// The larger one; a NaN is passed over and shows in the sum of the weights instead.
inline float larger(float a, float b) { return a > b ? a : b; }

inline float sink_of(constant SdpaParams& p, device const void* sinks, int head) {
  return load_float(sinks, long(head) * p.sinks_stride, p.sinks_dtype);
}

#endif
