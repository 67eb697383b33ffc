// The kernels that library.cpp registers, one a backend and op; those of MPS are in
// csrc/mps/ops.h. Each file of csrc/<backend>/ defines its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <optional>

namespace tmo {

namespace cpu {
at::Tensor sdpa(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                std::optional<double> scale, bool enable_gqa, const std::optional<at::Tensor>& seqused_k,
                std::optional<int64_t> sliding_window, double softcap, const std::optional<at::Tensor>& sinks);
at::Tensor gather_qmv(const at::Tensor& x, const at::Tensor& w, const at::Tensor& scales, const at::Tensor& biases,
                      const at::Tensor& expert_indices, int64_t group_size);
at::Tensor gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                            const at::Tensor& beta, at::Tensor& state);
}  // namespace cpu

namespace meta {
at::Tensor sdpa(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                std::optional<double> scale, bool enable_gqa, const std::optional<at::Tensor>& seqused_k,
                std::optional<c10::SymInt> sliding_window, double softcap, const std::optional<at::Tensor>& sinks);
at::Tensor gather_qmv(const at::Tensor& x, const at::Tensor& w, const at::Tensor& scales, const at::Tensor& biases,
                      const at::Tensor& expert_indices, c10::SymInt group_size);
at::Tensor gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                            const at::Tensor& beta, at::Tensor& state);
}  // namespace meta

}  // namespace tmo
