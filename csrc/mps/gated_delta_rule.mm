// metal::gated_delta_rule on MPS: one launch, of the recurrent or the chunked kernel. No tensor is ever copied.
#include "../ops/gated_delta_rule.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "../ops/gated_delta_rule_kernels.h"
#include "alignment.h"
#include "dtype.h"
#include "kernels/gated_delta_rule_params.h"
#include "launch.h"
#include "ops.h"

namespace tmo::mps {
namespace {

void copy_strides(const at::Tensor& tensor, int64_t* strides) { std::ranges::copy(tensor.strides(), strides); }

// Whether each row is whole vectors of four elements, at multiples of four.
bool in_vectors(const at::Tensor& tensor) {
  return tensor.stride(3) == 1 && tensor.size(3) % 4 == 0 && rows_start_at_multiples(tensor, 4);
}

GatedDeltaParams make_params(const GatedDeltaTensors& t, const GatedDeltaShape<int64_t>& s, const at::Tensor& y) {
  GatedDeltaParams p{};
  p.T = s.T, p.heads_per_key = s.Hv / s.Hk, p.Dk = s.Dk, p.Dv = s.Dv;
  copy_strides(t.q, p.q), copy_strides(t.k, p.k), copy_strides(t.v, p.v), copy_strides(t.g, p.g);
  copy_strides(t.beta, p.beta), copy_strides(t.state, p.state), copy_strides(y, p.y);
  p.dtype = dtype_of(t.q), p.g_dtype = dtype_of(t.g), p.beta_dtype = dtype_of(t.beta);
  p.state_dtype = dtype_of(t.state);
  p.whole_vectors = in_vectors(t.state);
  return p;
}

}  // namespace

at::Tensor gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                            const at::Tensor& beta, at::Tensor& state) {
  const GatedDeltaTensors t{q, k, v, g, beta, state};
  const auto s = check_gated_delta_rule<int64_t>(t);
  check_gated_delta_counts(s);
  at::Tensor y = at::empty(v.sizes(), v.options());
  if (y.numel() == 0) return y;

  const GatedDeltaKernel& kernel = choose_gated_delta(s.T, s.Dk);
  launch(kGatedDelta, gated_delta_kernel_name(kernel, s.decay_per_channel),
         {uint64_t((s.Dv + kernel.rows - 1) / kernel.rows), uint64_t(s.Hv), uint64_t(s.B)}, {uint64_t(kernel.threads)},
         {q, k, v, g, beta, state, y, make_params(t, s, y)});
  return y;
}

}  // namespace tmo::mps
