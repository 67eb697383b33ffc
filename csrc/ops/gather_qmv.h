// metal::gather_qmv: the rules of its arguments, for every backend.
#pragma once

#include <c10/util/SmallVector.h>

#include <array>

#include "../core/check.h"

namespace tmo {

constexpr std::array<int64_t, 6> kQuantizedBits{2, 3, 4, 5, 6, 8};
constexpr std::array<int64_t, 5> kGroupSizes{16, 32, 64, 128, 256};

template <class Int>
struct GatherQmvShape {
  bool top_k;  // expert_indices has one dimension more than the rows of x
  int64_t bits;
  int64_t group_size;
  Int E, N, K;  // experts, outputs, inputs
};

struct GatherQmvTensors {
  const at::Tensor& x;
  const at::Tensor& w;
  const at::Tensor& scales;
  const at::Tensor& biases;
  const at::Tensor& expert_indices;
};

namespace gather_qmv_detail {

inline void check_dtypes(const GatherQmvTensors& t) {
  check_float("gather_qmv", {"x", t.x});
  TMO_CHECK(t.w.scalar_type() == at::kByte, "gather_qmv: w must be uint8, got ", t.w.scalar_type(),
            ". View packed 32-bit words with .view(torch.uint8).");
  check_float("gather_qmv", {"scales", t.scales});
  check_float("gather_qmv", {"biases", t.biases});
  check_index("gather_qmv", {"expert_indices", t.expert_indices});
  check_same_device("gather_qmv", {"x", t.x},
                    {{"w", t.w}, {"scales", t.scales}, {"biases", t.biases}, {"expert_indices", t.expert_indices}});
}

// The number of bits a weight, from the packed row length; 0 when it is none of kQuantizedBits.
template <class Int>
int64_t infer_bits(const Int& packed, const Int& K) {
  for (int64_t bits : kQuantizedBits) {
    if (known(eq(packed * 8, K * bits))) return bits;
  }
  return 0;
}

template <class Int>
void check_same_sizes(const char* rule, c10::ArrayRef<Int> got, c10::ArrayRef<Int> want, const char* name) {
  bool same = got.size() == want.size();
  for (size_t d = 0; same && d < got.size(); ++d) same = holds(eq(got[d], want[d]));
  TMO_CHECK(same, "gather_qmv: ", name, " must be ", rule, " = ", want, ", got shape ", got,
            ". Requantise with torch_metal_ops.quantize_affine().");
}

// Whether the indices are those of x's rows, or of its rows with one more dimension for the top_k experts of each.
template <class Int>
bool has_top_k(c10::ArrayRef<Int> x, c10::ArrayRef<Int> indices) {
  const size_t rows = x.size() - 1;
  bool fits = indices.size() == rows || indices.size() == rows + 1;
  for (size_t d = 0; fits && d < rows; ++d) fits = holds(eq(indices[d], x[d]));
  TMO_CHECK(fits, "gather_qmv: expert_indices must be x.shape[:-1] or x.shape[:-1] + (top_k,), got shape ", indices,
            " for x of shape ", x, ". Give each row of x one expert, or top_k experts.");
  return indices.size() == rows + 1;
}

}  // namespace gather_qmv_detail

template <class Int>
GatherQmvShape<Int> check_gather_qmv(const GatherQmvTensors& t, const Int& group_size) {
  using namespace gather_qmv_detail;
  check_dtypes(t);
  const auto x = sizes_of<Int>(t.x), w = sizes_of<Int>(t.w);
  TMO_CHECK(x.size() >= 1, "gather_qmv: x must be [..., K], got shape ", x, ". Add a dimension.");
  TMO_CHECK(w.size() == 3, "gather_qmv: w must be [E, N, K*bits/8], got shape ", w,
            ". For one matrix use w.unsqueeze(0), one expert.");
  const Int& K = x[x.size() - 1];
  int64_t group = 0;
  for (int64_t size : kGroupSizes) {
    if (known(eq(group_size, Int(size)))) group = size;
  }
  TMO_CHECK(group != 0, "gather_qmv: group_size must be one of 16, 32, 64, 128, 256, got ", group_size,
            ". Requantise with torch_metal_ops.quantize_affine(weight, group_size=...).");
  TMO_CHECK(eq(K % group, Int(0)), "gather_qmv: K must be a multiple of group_size, got K=", K,
            " and group_size=", group, ". Requantise with a smaller group_size.");
  const int64_t bits = infer_bits(w[2], K);
  TMO_CHECK(bits != 0, "gather_qmv: the last dimension of w must be K*bits/8 with bits one of 2, 3, 4, 5, 6, 8, got ",
            w[2], " for K=", K, ". Pack weights with torch_metal_ops.quantize_affine().");
  const std::array<Int, 3> groups{w[0], w[1], K / group};
  const c10::ArrayRef<Int> want(groups);
  check_same_sizes("[E, N, K/group_size]", sizes_of<Int>(t.scales), want, "scales");
  check_same_sizes("[E, N, K/group_size]", sizes_of<Int>(t.biases), want, "biases");
  const bool top_k = has_top_k(x, sizes_of<Int>(t.expert_indices));
  return {top_k, bits, group, w[0], w[1], K};
}

// For a device that may look at the data.
inline void check_expert(int64_t expert, int64_t E) {
  TORCH_CHECK_INDEX(-1 <= expert && expert < E, "gather_qmv: expert_indices must be from 0 to E-1 = ", E - 1,
                    ", or -1, got ", expert, ". Use -1 where a row has no expert.");
}

// expert_indices.shape + (N,), contiguous.
template <class Int>
c10::SmallVector<Int, 5> gather_qmv_output(const at::Tensor& expert_indices, const GatherQmvShape<Int>& s) {
  const auto rows = sizes_of<Int>(expert_indices);
  c10::SmallVector<Int, 5> sizes(rows.begin(), rows.end());
  sizes.push_back(s.N);
  return sizes;
}

}  // namespace tmo
