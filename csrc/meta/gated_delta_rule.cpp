#include "../ops/gated_delta_rule.h"

#include <ATen/ops/empty.h>

#include "../core/kernels.h"

namespace tmo::meta {

at::Tensor gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                            const at::Tensor& beta, at::Tensor& state) {
  check_gated_delta_rule<c10::SymInt>({q, k, v, g, beta, state});
  return at::empty_symint(v.sym_sizes(), v.options());
}

}  // namespace tmo::meta
