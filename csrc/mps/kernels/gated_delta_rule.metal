// The kernels of metal::gated_delta_rule. csrc/ops/gated_delta_rule_kernels.h chooses one and makes its name.
#include "gated_delta_rule_chunked.h"
#include "gated_delta_rule_recurrent.h"

#define TMO_RECURRENT(name, lanes, vectors, per_channel, tail)                                                    \
  template [[host_name(name)]] [[kernel]] decltype(gated_delta_rule_recurrent<lanes, vectors, per_channel, tail>) \
      gated_delta_rule_recurrent<lanes, vectors, per_channel, tail>;

#define TMO_RECURRENT_ALL(dk, lanes, vectors)                                                 \
  TMO_RECURRENT("gated_delta_rule_recurrent_dk" #dk, lanes, vectors, false, false)            \
  TMO_RECURRENT("gated_delta_rule_recurrent_dk" #dk "_channels", lanes, vectors, true, false) \
  TMO_RECURRENT("gated_delta_rule_recurrent_upto" #dk, lanes, vectors, false, true)           \
  TMO_RECURRENT("gated_delta_rule_recurrent_upto" #dk "_channels", lanes, vectors, true, true)

TMO_RECURRENT_ALL(64, 4, 4)
TMO_RECURRENT_ALL(128, 4, 8)
TMO_RECURRENT_ALL(256, 8, 8)

#define TMO_CHUNKED(name, tiles, per_channel)                                                    \
  template [[host_name(name)]] [[kernel]] decltype(gated_delta_rule_chunked<tiles, per_channel>) \
      gated_delta_rule_chunked<tiles, per_channel>;

#define TMO_CHUNKED_ALL(dk, tiles)                               \
  TMO_CHUNKED("gated_delta_rule_chunked_upto" #dk, tiles, false) \
  TMO_CHUNKED("gated_delta_rule_chunked_upto" #dk "_channels", tiles, true)

TMO_CHUNKED_ALL(64, 8)
TMO_CHUNKED_ALL(128, 16)
TMO_CHUNKED_ALL(256, 32)
