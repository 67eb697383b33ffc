// What the host tells the kernels of metal::gated_delta_rule. Strides are in elements; their order is that of the
// tensors' dimensions, [batch, step, head, channel] and for the state [batch, head, row, channel].
#ifndef TMO_MPS_GATED_DELTA_RULE_PARAMS_H
#define TMO_MPS_GATED_DELTA_RULE_PARAMS_H

#ifndef __METAL_VERSION__
#include <cstdint>
#endif

struct GatedDeltaParams {
  int64_t T;
  int64_t q[4], k[4], v[4], g[4], beta[4], state[4], y[4];  // beta, and g without channels, have no fourth
  uint32_t heads_per_key;                                   // Hv / Hk
  uint32_t Dk, Dv;
  uint32_t dtype, g_dtype, beta_dtype, state_dtype;  // tags of common/dtype.h; dtype is that of q, k, v and y
  uint32_t whole_vectors;  // rows of the state are whole vectors of 4 elements, each at an address of its alignment
};

static_assert(sizeof(GatedDeltaParams) == 264, "host and shader must agree");

#endif
