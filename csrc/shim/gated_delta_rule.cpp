#include "../core/shim.h"

namespace {

using namespace tmo::shim;
using Op = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                      at::Tensor&);

}  // namespace

TMO_DEFINE_SHIMS(gated_delta_rule,
                 (AtenTensorHandle q, AtenTensorHandle k, AtenTensorHandle v, AtenTensorHandle g, AtenTensorHandle beta,
                  AtenTensorHandle state, AtenTensorHandle* ret0),
                 {
                   static const auto op = find_op<Op>("metal::gated_delta_rule");
                   give(op.call(tensor(q), tensor(k), tensor(v), tensor(g), tensor(beta), tensor(state)), ret0);
                 })
