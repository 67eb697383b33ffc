#include "overlap.h"

#include <algorithm>
#include <vector>

namespace tmo {
namespace {

struct ByteRange {
  int64_t begin, end;
};

// The bytes of its storage that a non-empty tensor spans. Strides of a tensor are never negative.
ByteRange span(const at::Tensor& tensor) {
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const int64_t item = tensor.element_size();
  return {tensor.storage_offset() * item, (last + 1) * item};
}

// Calls visit(first byte) for each element, an odometer over every dimension; stops when visit returns true.
template <class Visit>
bool any_element(const at::Tensor& tensor, const Visit& visit) {
  std::vector<int64_t> index(tensor.dim(), 0);
  int64_t offset = tensor.storage_offset();
  for (int64_t count = tensor.numel(); count > 0; --count) {
    if (visit(offset * tensor.element_size())) return true;
    for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
      offset += tensor.stride(d);
      if (++index[d] < tensor.size(d)) break;
      offset -= tensor.size(d) * tensor.stride(d);
      index[d] = 0;
    }
  }
  return false;
}

bool is_symbolic(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); }

// Two views of one storage with common bytes in their ranges may still be disjoint, like the columns of a matrix.
// Mark every byte of a within the common range, then look for one of b.
bool share_a_byte(const at::Tensor& a, const at::Tensor& b, ByteRange common) {
  std::vector<bool> used(common.end - common.begin, false);
  const auto each_common_byte = [&](int64_t first, int64_t item, const auto& action) {
    const int64_t end = std::min(first + item, common.end);
    for (int64_t byte = std::max(first, common.begin); byte < end; ++byte) {
      if (action(byte - common.begin)) return true;
    }
    return false;
  };
  const auto mark = [&](int64_t byte) {
    used[byte] = true;
    return false;
  };
  const auto is_marked = [&](int64_t byte) { return bool(used[byte]); };
  any_element(a, [&](int64_t first) { return each_common_byte(first, a.element_size(), mark); });
  return any_element(b, [&](int64_t first) { return each_common_byte(first, b.element_size(), is_marked); });
}

}  // namespace

bool overlaps(const at::Tensor& a, const at::Tensor& b) {
  if (is_symbolic(a) || is_symbolic(b) || !a.is_alias_of(b) || a.numel() == 0 || b.numel() == 0) return false;
  const ByteRange in_a = span(a), in_b = span(b);
  const ByteRange common{std::max(in_a.begin, in_b.begin), std::min(in_a.end, in_b.end)};
  return common.begin < common.end && share_a_byte(a, b, common);
}

bool repeats_elements(const at::Tensor& tensor) {
  if (is_symbolic(tensor) || tensor.numel() == 0) return false;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1 && tensor.stride(d) == 0) return true;
  }
  return false;
}

}  // namespace tmo
