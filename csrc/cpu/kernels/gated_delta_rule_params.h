// What the host tells the kernels of metal::gated_delta_rule. Sizes of scratch memory hold for every instruction set.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace tmo::cpu {

// A tensor argument: address, dtype and strides in elements. A missing dimension has stride 0.
struct Strided {
  void* data;
  Dtype dtype;
  int64_t strides[4];
};

struct GatedDeltaParams {
  int64_t T, Hv, Dk, Dv;
  int64_t heads_per_key;  // Hv / Hk
  bool decay_per_channel;
  Strided q, k, v, g, beta, state, y;
};

// Rows [begin, end) of the state of value head h of batch b, and those columns of y: all T steps. The rows of a state
// do not depend on one another.
struct GatedDeltaRows {
  int64_t b, h, begin, end;
};

constexpr int64_t kGatedDeltaMaxDk = 256;
constexpr int64_t kGatedDeltaChunk = 32;  // steps that the chunked kernel takes at once
constexpr int64_t kGatedDeltaPanel = 32;  // at least the columns of one panel of the chunked kernel

// Room for whole vectors of any instruction set.
constexpr int64_t gated_delta_padded(int64_t size) { return (size + 15) / 16 * 16; }

// The floats of scratch memory that steps, loaded as float32, need: q, k, g; v, y; beta.
constexpr int64_t gated_delta_steps_floats(int64_t steps, int64_t Dk, int64_t Dv) {
  return steps * (3 * gated_delta_padded(Dk) + 2 * gated_delta_padded(Dv)) + gated_delta_padded(steps);
}

constexpr int64_t kGatedDeltaRowsAtOnce = 4;  // of the state, in the recurrent kernel

constexpr int64_t gated_delta_recurrent_floats(int64_t T, int64_t Dk, int64_t Dv) {
  return gated_delta_steps_floats(T, Dk, Dv) + kGatedDeltaRowsAtOnce * gated_delta_padded(Dk);
}

constexpr int64_t gated_delta_chunked_floats(int64_t Dk, int64_t Dv) {
  constexpr int64_t C = kGatedDeltaChunk;
  const int64_t columns = (Dv + kGatedDeltaPanel - 1) / kGatedDeltaPanel * kGatedDeltaPanel;
  return gated_delta_recurrent_floats(C, Dk, kGatedDeltaPanel)  // for steps with NaN or inf
         + 3 * C * gated_delta_padded(Dk)                       // keys, queries, decays
         + Dk * C                                               // transposed keys
         + 2 * C * C + 2 * C + gated_delta_padded(Dk)           // products of keys and queries, decays, beta
         + C * (columns + 16)                                   // v and y
         + 2 * C * kGatedDeltaPanel                             // updates and outputs of a panel
         + Dk * (columns + kGatedDeltaPanel);                   // the state, and a panel before its update
}

}  // namespace tmo::cpu
