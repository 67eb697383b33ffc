#include <ATen/ops/empty_strided.h>

#include "../core/kernels.h"
#include "../ops/sdpa.h"

namespace tmo::meta {

at::Tensor sdpa(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                std::optional<double> scale, bool enable_gqa, const std::optional<at::Tensor>& seqused_k,
                std::optional<c10::SymInt> sliding_window, double softcap, const std::optional<at::Tensor>& sinks) {
  const auto shape = check_sdpa<c10::SymInt>({query, key, value, attn_mask, seqused_k, sinks},
                                             {dropout_p, is_causal, scale, enable_gqa, sliding_window, softcap});
  const auto out = sdpa_output(query, shape);
  return at::empty_strided_symint(out.sizes, out.strides, query.options());
}

}  // namespace tmo::meta
