// The ops on MPS, defined in the .mm files, which are built on macOS, on Linux for the tests' simulated device, and for
// ExecuTorch's runtime.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace tmo::mps {

at::Tensor sdpa(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                std::optional<double> scale, bool enable_gqa, const std::optional<at::Tensor>& seqused_k,
                std::optional<int64_t> sliding_window, double softcap, const std::optional<at::Tensor>& sinks);
at::Tensor gather_qmv(const at::Tensor& x, const at::Tensor& w, const at::Tensor& scales, const at::Tensor& biases,
                      const at::Tensor& expert_indices, int64_t group_size);
at::Tensor gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                            const at::Tensor& beta, at::Tensor& state);

}  // namespace tmo::mps
