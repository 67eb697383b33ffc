// metal::gated_delta_rule on the CPU: checks, shares out the rows of the states among the threads, and chooses between
// the recurrent and the chunked kernel.
#include "../ops/gated_delta_rule.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "../core/kernels.h"
#include "dispatch.h"
#include "dtype.h"
#include "kernels/gated_delta_rule_params.h"

namespace tmo::cpu {
namespace {

Strided strided(const at::Tensor& tensor) {
  Strided out{tensor.data_ptr(), dtype_of(tensor), {}};
  std::copy(tensor.strides().begin(), tensor.strides().end(), out.strides);
  return out;
}

// Products of a task that is worth a thread.
constexpr int64_t kGrain = 1 << 15;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many rows of a state one task takes: all, or fewer where there are few heads for many threads. A row comes out
// the same whatever the task it is in.
int64_t rows_per_task(int64_t heads, int64_t Dv, int64_t least) {
  const int64_t tasks_per_head = ceil_div(4 * at::get_num_threads(), heads);
  return std::min(Dv, ceil_div(ceil_div(Dv, tasks_per_head), least) * least);
}

}  // namespace

at::Tensor gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                            const at::Tensor& beta, at::Tensor& state) {
  const auto s = check_gated_delta_rule<int64_t>({q, k, v, g, beta, state});
  at::Tensor y = at::empty(v.sizes(), v.options());
  if (y.numel() == 0) return y;

  const GatedDeltaParams p{s.T,        s.Hv,       s.Dk,       s.Dv,       s.Hv / s.Hk,   s.decay_per_channel,
                           strided(q), strided(k), strided(v), strided(g), strided(beta), strided(state),
                           strided(y)};
  const bool chunked = gated_delta_in_chunks(s.T, s.Dk);
  const auto kernel = chunked ? kernels().gated_delta_chunked : kernels().gated_delta_recurrent;
  const int64_t floats =
      chunked ? gated_delta_chunked_floats(s.Dk, s.Dv) : gated_delta_recurrent_floats(s.T, s.Dk, s.Dv);
  const int64_t rows = rows_per_task(s.B * s.Hv, s.Dv, chunked ? 16 : kGatedDeltaRowsAtOnce);
  const int64_t tasks_per_head = ceil_div(s.Dv, rows);
  const int64_t grain = std::max<int64_t>(1, kGrain / (s.T * s.Dk * rows));
  const at::Tensor scratch = at::empty({at::get_num_threads(), floats}, v.options().dtype(at::kFloat));
  at::parallel_for(0, s.B * s.Hv * tasks_per_head, grain, [&](int64_t begin, int64_t end) {
    float* const mine = scratch.data_ptr<float>() + at::get_thread_num() * floats;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / tasks_per_head, first = task % tasks_per_head * rows;
      kernel(p, {head / s.Hv, head % s.Hv, first, std::min(first + rows, s.Dv)}, mine);
    }
  });
  return y;
}

}  // namespace tmo::cpu
