// metal::gather_qmv on MPS: one launch for few pairs of a row and an expert; for many, the launches that group them.
#include "../ops/gather_qmv.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>

#include "../ops/gather_qmv_kernels.h"
#include "alignment.h"
#include "dtype.h"
#include "kernels/gather_qmv_params.h"
#include "launch.h"
#include "ops.h"

namespace tmo::mps {
namespace {

// The first `dims` dimensions of a tensor, as few as possible. False where they are too many for the kernels.
bool find_rows(const at::Tensor& tensor, int64_t dims, GatherQmvRows& rows) {
  rows.dims = 1, rows.sizes[0] = 1, rows.strides[0] = 0;
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t size = tensor.size(d), stride = tensor.stride(d);
    if (size == 1) continue;
    const uint32_t last = rows.dims - 1;
    if (rows.sizes[last] == 1 || rows.strides[last] == size * stride) {
      rows.sizes[last] *= size;
    } else if (rows.dims == kMaxRowDims) {
      return false;
    } else {
      rows.sizes[rows.dims++] = size;
    }
    rows.strides[rows.dims - 1] = stride;
  }
  return true;
}

// The tensor, or a copy of it where its rows have more dimensions than the kernels can step through.
at::Tensor with_rows(const at::Tensor& tensor, int64_t dims, GatherQmvRows& rows) {
  if (find_rows(tensor, dims, rows)) return tensor;
  const at::Tensor copy = tensor.contiguous();
  find_rows(copy, dims, rows);
  return copy;
}

// Whether all rows of the last dimension begin at a multiple of `bytes` and have no gaps.
bool rows_aligned(const at::Tensor& tensor, int64_t bytes) {
  return (tensor.stride(-1) == 1 || tensor.size(-1) == 1) &&
         rows_start_at_multiples(tensor, bytes / tensor.element_size());
}

GatherQmvGroups groups_of(const at::Tensor& t) { return {t.stride(0), t.stride(1), t.stride(2), dtype_of(t), 0}; }

GatherQmvParams make_params(const GatherQmvTensors& t, const GatherQmvShape<int64_t>& s) {
  GatherQmvParams p{};
  p.pairs = t.expert_indices.numel(), p.N = s.N, p.K = s.K, p.E = s.E;
  p.top_k = s.top_k ? t.expert_indices.size(-1) : 1;
  p.bits = s.bits, p.group_shift = std::countr_zero(uint64_t(s.group_size));
  p.dtype = dtype_of(t.x);
  p.long_indices = t.expert_indices.scalar_type() == at::kLong;
  // 32 weights are 4 * bits bytes, which are read in loads of a power of two that divides them
  const int64_t load = std::min<int64_t>(16, int64_t(1) << std::countr_zero(uint64_t(4 * s.bits)));
  p.wide_w = s.K % 32 == 0 && rows_aligned(t.w, load);
  p.wide_x = rows_aligned(t.x, 16);
  p.w_expert_stride = t.w.stride(0), p.w_row_stride = t.w.stride(1), p.w_stride = t.w.stride(2);
  p.x_stride = t.x.stride(-1);
  p.scales = groups_of(t.scales), p.biases = groups_of(t.biases);
  return p;
}

uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

void run_decode(const GatherQmvTensors& t, const GatherQmvParams& p, const at::Tensor& y) {
  launch(kGatherQmvDecode, gather_qmv_decode_kernel(p.bits),
         {p.pairs, divide_up(p.N, kDecodeOutputs * kDecodeSimdgroups)}, {32 * kDecodeSimdgroups},
         {t.x, t.w, t.scales, t.biases, t.expert_indices, y, p});
}

void run_grouped(const GatherQmvTensors& t, const GatherQmvParams& p, const at::Tensor& y) {
  const at::TensorOptions options = t.x.options().dtype(at::kInt);
  const int64_t pairs = p.pairs, experts = int64_t(p.E) + 2;  // with those of pairs that have none
  // each expert that has pairs may have one tile that is not full
  const int64_t tiles = divide_up(pairs + std::min(pairs, experts) * (kTilePairs - 1), kTilePairs);
  const at::Tensor counts = at::empty({experts + 1}, options);
  const at::Tensor starts = at::empty({experts, 2}, options);
  const at::Tensor ranks = at::empty({pairs}, options), sorted = at::empty({pairs}, options);
  const at::Tensor list = at::empty({tiles, 4}, options);
  const Size all_pairs{divide_up(pairs, kGroupingThreads)}, group{kGroupingThreads};
  launch(kGatherQmvGrouped, "gather_qmv_clear", {divide_up(experts + 1, kGroupingThreads)}, group, {counts, p});
  launch(kGatherQmvGrouped, "gather_qmv_count", all_pairs, group, {t.expert_indices, counts, ranks, p});
  launch(kGatherQmvGrouped, "gather_qmv_start", {}, group, {counts, starts, p});
  launch(kGatherQmvGrouped, "gather_qmv_sort", all_pairs, group,
         {t.expert_indices, counts, starts, ranks, sorted, list, p});
  launch(kGatherQmvGrouped, gather_qmv_tile_kernel(p.bits), {divide_up(p.N, kTileOutputs), uint64_t(tiles)},
         {kTileThreads}, {t.x, t.w, t.scales, t.biases, list, sorted, counts, y, p});
}

}  // namespace

at::Tensor gather_qmv(const at::Tensor& x, const at::Tensor& w, const at::Tensor& scales, const at::Tensor& biases,
                      const at::Tensor& expert_indices, int64_t group_size) {
  const auto s = check_gather_qmv<int64_t>({x, w, scales, biases, expert_indices}, group_size);
  check_gather_qmv_counts(expert_indices.numel(), s);
  at::Tensor y = at::empty(gather_qmv_output(expert_indices, s), x.options());
  if (y.numel() == 0) return y;
  if (s.K == 0) return y.zero_();
  GatherQmvRows x_rows, index_rows;
  const at::Tensor x_found = with_rows(x, x.dim() - 1, x_rows);
  const at::Tensor indices_found = with_rows(expert_indices, expert_indices.dim(), index_rows);
  const GatherQmvTensors tensors{x_found, w, scales, biases, indices_found};
  GatherQmvParams p = make_params(tensors, s);
  p.x_rows = x_rows, p.index_rows = index_rows;
  (gather_qmv_groups(p.pairs, s.E) ? run_grouped : run_decode)(tensors, p, y);
  return y;
}

}  // namespace tmo::mps
