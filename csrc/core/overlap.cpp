#include "overlap.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tmo {
namespace {

struct ByteRange {
  int64_t begin, end;
};

// The bytes that a non-empty tensor spans, from `first` on. Strides of a tensor are never negative.
ByteRange span(const at::Tensor& tensor, int64_t first) {
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {first, first + (last + 1) * tensor.element_size()};
}

// Calls visit(first byte) for each element, an odometer over every dimension; stops when visit returns true.
template <class Visit>
bool any_element(const at::Tensor& tensor, int64_t first, const Visit& visit) {
  std::vector<int64_t> index(tensor.dim(), 0);
  int64_t offset = 0;
  for (int64_t count = tensor.numel(); count > 0; --count) {
    if (visit(first + offset * tensor.element_size())) return true;
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

// By the device of its memory, since a fake tensor says that its own device is a CPU.
bool has_address(const at::Tensor& tensor) { return tensor.storage().device_type() == c10::DeviceType::CPU; }

// Where a tensor begins: its address, or its place in its storage.
int64_t first_byte(const at::Tensor& tensor) {
  const int64_t offset = tensor.storage_offset() * tensor.element_size();
  if (!has_address(tensor)) return offset;
  return static_cast<int64_t>(reinterpret_cast<intptr_t>(tensor.storage().data())) + offset;
}

// Two views of one memory with common bytes in their ranges may still be disjoint, like the columns of a matrix.
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
  any_element(a, first_byte(a), [&](int64_t first) { return each_common_byte(first, a.element_size(), mark); });
  return any_element(b, first_byte(b),
                     [&](int64_t first) { return each_common_byte(first, b.element_size(), is_marked); });
}

// True when each dimension, from the smallest stride on, steps over all that the ones before it span: then no two
// elements meet. False says nothing.
bool is_nested(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) dimensions.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t spanned = 1;
  for (const auto& [stride, size] : dimensions) {
    if (stride < spanned) return false;
    spanned += (size - 1) * stride;
  }
  return true;
}

}  // namespace

bool overlaps(const at::Tensor& a, const at::Tensor& b) {
  if (is_symbolic(a) || is_symbolic(b) || a.numel() == 0 || b.numel() == 0) return false;
  if (!a.is_alias_of(b) && !(has_address(a) && has_address(b))) return false;
  const ByteRange in_a = span(a, first_byte(a)), in_b = span(b, first_byte(b));
  const ByteRange common{std::max(in_a.begin, in_b.begin), std::min(in_a.end, in_b.end)};
  return common.begin < common.end && share_a_byte(a, b, common);
}

bool repeats_elements(const at::Tensor& tensor) {
  if (is_symbolic(tensor) || tensor.numel() == 0 || is_nested(tensor)) return false;
  const ByteRange range = span(tensor, 0);
  const int64_t item = tensor.element_size();
  if ((range.end - range.begin) / item < tensor.numel()) return true;  // more elements than places
  std::vector<bool> used((range.end - range.begin) / item, false);
  return any_element(tensor, 0, [&](int64_t first) {
    const bool seen = used[first / item];
    used[first / item] = true;
    return seen;
  });
}

}  // namespace tmo
