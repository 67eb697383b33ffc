// The kernels of metal::gated_delta_rule. csrc/ops/gated_delta_rule_kernels.h chooses one of them.
#include "common/instantiate.h"
#include "gated_delta_rule_chunked.h"
#include "gated_delta_rule_recurrent.h"

#define TMO_RECURRENT(dk, lanes, vectors)                                                                              \
  TMO_INSTANTIATE("gated_delta_rule_recurrent_dk" #dk, gated_delta_rule_recurrent, lanes, vectors, false, false)       \
  TMO_INSTANTIATE("gated_delta_rule_recurrent_dk" #dk "_channels", gated_delta_rule_recurrent, lanes, vectors, true,   \
                  false)                                                                                               \
  TMO_INSTANTIATE("gated_delta_rule_recurrent_upto" #dk, gated_delta_rule_recurrent, lanes, vectors, false, true)      \
  TMO_INSTANTIATE("gated_delta_rule_recurrent_upto" #dk "_channels", gated_delta_rule_recurrent, lanes, vectors, true, \
                  true)

TMO_RECURRENT(64, 4, 4)
TMO_RECURRENT(128, 4, 8)
TMO_RECURRENT(256, 8, 8)

#define TMO_CHUNKED(dk, tiles)                                                                 \
  TMO_INSTANTIATE("gated_delta_rule_chunked_upto" #dk, gated_delta_rule_chunked, tiles, false) \
  TMO_INSTANTIATE("gated_delta_rule_chunked_upto" #dk "_channels", gated_delta_rule_chunked, tiles, true)

TMO_CHUNKED(64, 8)
TMO_CHUNKED(128, 16)
TMO_CHUNKED(256, 32)
