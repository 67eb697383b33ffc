#include "../ops/gather_qmv.h"

#include <ATen/ops/empty.h>

#include "../core/kernels.h"

namespace tmo::meta {

at::Tensor gather_qmv(const at::Tensor& x, const at::Tensor& w, const at::Tensor& scales, const at::Tensor& biases,
                      const at::Tensor& expert_indices, c10::SymInt group_size) {
  const auto shape = check_gather_qmv<c10::SymInt>({x, w, scales, biases, expert_indices}, group_size);
  return at::empty_symint(gather_qmv_output(expert_indices, shape), x.options());
}

}  // namespace tmo::meta
