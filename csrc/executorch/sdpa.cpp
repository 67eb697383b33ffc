#include "../mps/ops.h"
#include "shims.h"

using namespace tmo::executorch;

TMO_SHIM aoti_torch_mps_sdpa(AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value,
                             AtenTensorHandle* attn_mask, double dropout_p, int32_t is_causal, double* scale,
                             int32_t enable_gqa, AtenTensorHandle* seqused_k, int64_t* sliding_window, double softcap,
                             AtenTensorHandle* sinks, AtenTensorHandle* ret0) {
  return give(ret0, [&] {
    return tmo::mps::sdpa(at::Tensor::borrow(query), at::Tensor::borrow(key), at::Tensor::borrow(value),
                          optional_tensor(attn_mask), dropout_p, is_causal != 0, optional_value(scale), enable_gqa != 0,
                          optional_tensor(seqused_k), optional_value(sliding_window), softcap, optional_tensor(sinks));
  });
}
