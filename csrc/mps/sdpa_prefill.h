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

// Adds up the partial results of p.splits parts of the keys.
void sdpa_reduce(const SdpaArguments& t, const SdpaParams& p, const at::Tensor& references, const at::Tensor& weighted);

// p.splits is chosen here.
void sdpa_prefill(const SdpaArguments& t, SdpaParams p);

}  // namespace tmo::mps
