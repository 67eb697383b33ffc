#include <ATen/ATen.h>
#include "../core/kernels.h"
#include "../ops/gather_qmv.h"
namespace tmo::cpu {
at::Tensor gather_qmv(const at::Tensor& x, const at::Tensor& w, const at::Tensor& scales, const at::Tensor& biases,
                      const at::Tensor& expert_indices, int64_t group_size) {
  const auto s = check_gather_qmv<int64_t>({x, w, scales, biases, expert_indices}, group_size);
  auto out = at::zeros(gather_qmv_output(expert_indices, s), x.options());
  auto xr = x.to(at::kFloat).reshape({-1, s.K}).contiguous();
  auto idx = expert_indices.to(at::kLong).contiguous();
  int64_t P = idx.numel(), per = xr.size(0) ? P / xr.size(0) : 1;
  for (int64_t p = 0; p < P; ++p) TORCH_CHECK_INDEX(idx.data_ptr<int64_t>()[p] >= -1 && idx.data_ptr<int64_t>()[p] < s.E, "gather_qmv: expert_indices must be from -1 to E-1 = ", s.E - 1, ", got ", idx.data_ptr<int64_t>()[p], ". Use -1 for no expert.");
  auto wc = w.contiguous(); auto sc = scales.to(at::kFloat).contiguous(), bc = biases.to(at::kFloat).contiguous();
  auto of = at::zeros({P, s.N}, at::kFloat);
  for (int64_t p = 0; p < P; ++p) { int64_t e = idx.data_ptr<int64_t>()[p]; if (e < 0) continue;
    for (int64_t n = 0; n < s.N; ++n) { const uint8_t* b = wc.data_ptr<uint8_t>() + (e * s.N + n) * w.size(2); float acc = 0;
      const float* xp = xr.data_ptr<float>() + p / per * s.K;
      int64_t gk = s.K / group_size; const float* sp = sc.data_ptr<float>() + (e * s.N + n) * gk; const float* bp = bc.data_ptr<float>() + (e * s.N + n) * gk;
      for (int64_t k = 0; k < s.K; ++k) { int64_t bit = k * s.bits; unsigned word = b[bit / 8] | (bit / 8 + 1 < w.size(2) ? b[bit / 8 + 1] << 8 : 0); unsigned q = (word >> (bit % 8)) & ((1u << s.bits) - 1); acc += xp[k] * (sp[k / group_size] * q + bp[k / group_size]); }
      of.data_ptr<float>()[p * s.N + n] = acc; } }
  out.copy_(of.view(out.sizes())); return out;
}
}
