#include "../core/shim.h"

namespace {

using namespace tmo::shim;
using Op = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                      c10::SymInt);

}  // namespace

TMO_DEFINE_SHIMS(gather_qmv,
                 (AtenTensorHandle x, AtenTensorHandle w, AtenTensorHandle scales, AtenTensorHandle biases,
                  AtenTensorHandle expert_indices, int64_t group_size, AtenTensorHandle* ret0),
                 {
                   static const auto op = find_op<Op>("metal::gather_qmv");
                   give(op.call(tensor(x), tensor(w), tensor(scales), tensor(biases), tensor(expert_indices),
                                group_size),
                        ret0);
                 })
