// Attention of tiles of query rows, for the calls that are not decode.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/sdpa_params.h"

namespace tmo::mps {

// The tensors of a call of metal::sdpa as its kernels take them: 4-D, the last dimension contiguous. An undefined one
// was not given.
struct SdpaArguments {
  at::Tensor query, key, value, out, mask, seqused, sinks;
};

// p.splits is chosen here.
void sdpa_prefill(const SdpaArguments& t, SdpaParams p);

}  // namespace tmo::mps
