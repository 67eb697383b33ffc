#include "../core/shim.h"

namespace {

using namespace tmo::shim;
using Op = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double,
                      bool, std::optional<double>, bool, const std::optional<at::Tensor>&, std::optional<c10::SymInt>,
                      double, const std::optional<at::Tensor>&);

}  // namespace

TMO_DEFINE_SHIMS(sdpa,
                 (AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle* attn_mask,
                  double dropout_p, int32_t is_causal, double* scale, int32_t enable_gqa, AtenTensorHandle* seqused_k,
                  int64_t* sliding_window, double softcap, AtenTensorHandle* sinks, AtenTensorHandle* ret0),
                 {
                   static const auto op = find_op<Op>("metal::sdpa");
                   const auto window = sliding_window ? std::optional<c10::SymInt>(*sliding_window) : std::nullopt;
                   give(op.call(tensor(query), tensor(key), tensor(value), optional_tensor(attn_mask), dropout_p,
                                is_causal != 0, optional_value(scale), enable_gqa != 0, optional_tensor(seqused_k),
                                window, softcap, optional_tensor(sinks)),
                        ret0);
                 })
