// The schemas of this package's ops: the only copy.
#pragma once

#include <array>
#include <string>

namespace tmo {

inline constexpr std::array kSchemas{
    "metal::sdpa(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, "
    "bool is_causal=False, *, float? scale=None, bool enable_gqa=False, Tensor? seqused_k=None, "
    "SymInt? sliding_window=None, float softcap=0.0, Tensor? sinks=None) -> Tensor",
    // The next two are ExecuTorch's, to the letter: both packages may be in one process.
    "metal::gather_qmv(Tensor x, Tensor w, Tensor scales, Tensor biases, Tensor expert_indices, SymInt group_size) "
    "-> Tensor",
    "metal::gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor(a5!) state) -> Tensor",
};

// Why nothing may be registered, or empty: another package has defined one of these ops with another schema. Looked up
// once. It is thrown when Python imports the module: an exception while the library is being loaded would end the
// process.
const std::string& conflict();

}  // namespace tmo
