// metal::gather_qmv on the CPU: sorts the rows by expert, cuts them into tiles and divides the work among threads.
#include "../ops/gather_qmv.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "../core/kernels.h"
#include "dispatch.h"
#include "dtype.h"
#include "kernels/gather_qmv_params.h"

namespace tmo::cpu {
namespace {

GroupParameters group_parameters(const at::Tensor& t) {
  return {t.const_data_ptr(), dtype_of(t), t.stride(0), t.stride(1), t.stride(2)};
}

// Where each row of a tensor begins, in elements, its dimensions before `dims` counted off in order.
std::vector<int64_t> row_offsets(const at::Tensor& tensor, int64_t dims) {
  std::vector<int64_t> offsets{0};
  for (int64_t d = 0; d < dims; ++d) {
    std::vector<int64_t> finer;
    finer.reserve(offsets.size() * tensor.size(d));
    for (int64_t offset : offsets) {
      for (int64_t i = 0; i < tensor.size(d); ++i) finer.push_back(offset + i * tensor.stride(d));
    }
    offsets = std::move(finer);
  }
  return offsets;
}

template <class Index>
std::vector<int64_t> read_experts(const at::Tensor& indices, int64_t E) {
  std::vector<int64_t> experts = row_offsets(indices, indices.dim());
  const Index* const data = indices.const_data_ptr<Index>();
  for (int64_t& expert : experts) {
    expert = data[expert];
    check_expert(expert, E);
  }
  return experts;
}

struct Plan {
  std::vector<int64_t> pairs;  // those that have an expert, by expert and then in order
  std::vector<GatherQmvTile> tiles;
};

// Cuts an expert's rows into tiles of about one size, a multiple of 16 where there is more than one.
void add_tiles(int64_t expert, int64_t first, int64_t count, std::vector<GatherQmvTile>& tiles) {
  const int64_t parts = (count + kManyRows - 1) / kManyRows;
  const int64_t size = parts == 1 ? count : ((count + parts - 1) / parts + 15) / 16 * 16;
  for (int64_t done = 0; done < count; done += size) {
    tiles.push_back({expert, first + done, std::min(size, count - done)});
  }
}

Plan make_plan(const std::vector<int64_t>& experts, int64_t E) {
  std::vector<int64_t> begin(E + 1);
  for (int64_t expert : experts) {
    if (expert >= 0) ++begin[expert + 1];
  }
  for (int64_t e = 0; e < E; ++e) begin[e + 1] += begin[e];
  Plan plan;
  plan.pairs.resize(begin[E]);
  for (int64_t e = 0; e < E; ++e) {
    if (begin[e] != begin[e + 1]) add_tiles(e, begin[e], begin[e + 1] - begin[e], plan.tiles);
  }
  for (size_t pair = 0; pair < experts.size(); ++pair) {
    if (experts[pair] >= 0) plan.pairs[begin[experts[pair]]++] = pair;
  }
  return plan;
}

// What kWeightRows rows of weights cost a tile: reading them, and multiplying them with each row.
int64_t cost(const GatherQmvTile& tile) { return 2 + tile.count; }

// Runs every tile over every row of the weights. Work is a line of (tile, chunk of kWeightRows rows) that is cut into
// one piece a thread.
void run(const GatherQmvParams& p, const Plan& plan) {
  const int64_t chunks = (p.N + kWeightRows - 1) / kWeightRows;
  int64_t total = 0;
  for (const GatherQmvTile& tile : plan.tiles) total += chunks * cost(tile);
  const Kernels& kernel = kernels();
  const int64_t grain = std::max<int64_t>(1, (1 << 18) / (p.K * kWeightRows));
  at::parallel_for(0, total, grain, [&](int64_t begin, int64_t end) {
    const at::Tensor scratch = at::empty({kernel.gather_qmv_scratch(p)}, at::kFloat);
    int64_t at = 0;
    for (const GatherQmvTile& tile : plan.tiles) {
      // a piece has the chunks that begin in it
      const auto first_from = [&](int64_t position) {
        return std::clamp<int64_t>((position - at + cost(tile) - 1) / cost(tile), 0, chunks) * kWeightRows;
      };
      const int64_t n_begin = first_from(begin), n_end = std::min(first_from(end), p.N);
      if (n_begin < n_end) kernel.gather_qmv(p, tile, n_begin, n_end, scratch.data_ptr<float>());
      at += chunks * cost(tile);
    }
  });
}

}  // namespace

at::Tensor gather_qmv(const at::Tensor& x, const at::Tensor& w, const at::Tensor& scales, const at::Tensor& biases,
                      const at::Tensor& expert_indices, int64_t group_size) {
  const auto s = check_gather_qmv<int64_t>({x, w, scales, biases, expert_indices}, group_size);
  const std::vector<int64_t> experts = expert_indices.scalar_type() == at::kInt
                                           ? read_experts<int32_t>(expert_indices, s.E)
                                           : read_experts<int64_t>(expert_indices, s.E);
  at::Tensor out = at::empty(gather_qmv_output(expert_indices, s), x.options());
  if (out.numel() == 0) return out;
  char* const rows = static_cast<char*>(out.mutable_data_ptr());
  const int64_t row_bytes = s.N * out.element_size();
  for (size_t pair = 0; pair < experts.size(); ++pair) {
    if (experts[pair] < 0 || s.K == 0) std::memset(rows + pair * row_bytes, 0, row_bytes);
  }
  if (s.K == 0) return out;

  const Plan plan = make_plan(experts, s.E);
  const std::vector<int64_t> x_offsets = row_offsets(x, x.dim() - 1);
  const uint8_t* const bytes = w.const_data_ptr<uint8_t>();
  int64_t w_size = w.numel() != 0;
  for (int64_t d = 0; d < 3; ++d) w_size += (w.size(d) - 1) * w.stride(d);
  GatherQmvParams p{};
  p.N = s.N, p.K = s.K, p.group_size = s.group_size, p.bits = s.bits;
  p.w = bytes, p.w_end = bytes + w_size;
  p.w_expert_stride = w.stride(0), p.w_row_stride = w.stride(1), p.w_stride = w.stride(2);
  p.scales = group_parameters(scales), p.biases = group_parameters(biases);
  p.x = x.const_data_ptr(), p.dtype = dtype_of(x), p.x_stride = x.stride(x.dim() - 1);
  p.x_offsets = x_offsets.data(), p.pairs_per_row = experts.size() / x_offsets.size();
  p.out = out.mutable_data_ptr(), p.pairs = plan.pairs.data();
  run(p, plan);
  return out;
}

}  // namespace tmo::cpu
