// The part of ATen that csrc/ops and csrc/mps use, over tensors of ExecuTorch's Metal runtime: with it those files
// compile as they are, without libtorch. The headers in this folder have the names of ATen's and lead here. `at` and
// `c10` are other names of a namespace of ours, so that an app may link libtorch as well.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "../runtime.h"

namespace tmo::executorch::aten {

enum class DeviceType { CPU };

template <class T>
class ArrayRef {
 public:
  ArrayRef(const T* data, size_t size) : data_(data), size_(size) {}
  ArrayRef(const std::vector<T>& values) : ArrayRef(values.data(), values.size()) {}
  ArrayRef(const std::initializer_list<T>& values) : ArrayRef(values.begin(), values.size()) {}
  template <size_t N>
  ArrayRef(const std::array<T, N>& values) : ArrayRef(values.data(), N) {}

  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  size_t size() const { return size_; }
  const T& operator[](size_t i) const { return data_[i]; }
  ArrayRef slice(size_t first) const { return {data_ + first, size_ - first}; }

 private:
  const T* data_;
  size_t size_;
};

template <class T>
std::ostream& operator<<(std::ostream& out, ArrayRef<T> values) {
  out << '[';
  for (size_t i = 0; i < values.size(); ++i) out << (i ? ", " : "") << values[i];
  return out << ']';
}

template <class T, unsigned N>
using SmallVector = std::vector<T>;

template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// The numbers are torch's.
enum class ScalarType : int32_t {
  Byte = 0,
  Char = 1,
  Short = 2,
  Int = 3,
  Long = 4,
  Half = 5,
  Float = 6,
  Double = 7,
  Bool = 11,
  BFloat16 = 15,
};
constexpr ScalarType kByte = ScalarType::Byte, kInt = ScalarType::Int, kLong = ScalarType::Long;
constexpr ScalarType kHalf = ScalarType::Half, kFloat = ScalarType::Float, kBool = ScalarType::Bool;
constexpr ScalarType kBFloat16 = ScalarType::BFloat16;

std::ostream& operator<<(std::ostream& out, ScalarType dtype);

using IntArrayRef = ArrayRef<int64_t>;

class TensorOptions {
 public:
  explicit TensorOptions(ScalarType dtype) : dtype_(dtype) {}
  TensorOptions dtype(ScalarType dtype) const { return TensorOptions(dtype); }
  ScalarType scalar_type() const { return dtype_; }

 private:
  ScalarType dtype_;
};

// A view of a tensor of the runtime. All views of one share its handle, and the last one deletes it if it is theirs.
class Tensor {
 public:
  Tensor() = default;
  static Tensor borrow(AtenTensorHandle handle) { return Tensor(handle, false); }
  static Tensor own(AtenTensorHandle handle) { return Tensor(handle, true); }

  // To the caller, who deletes it.
  AtenTensorHandle release();
  AtenTensorHandle handle() const { return object_->handle; }

  bool defined() const { return object_ != nullptr; }
  int64_t dim() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t size(int64_t d) const { return sizes_[d < 0 ? d + dim() : d]; }
  int64_t stride(int64_t d) const { return strides_[d < 0 ? d + dim() : d]; }
  IntArrayRef sizes() const { return sizes_; }
  IntArrayRef strides() const { return strides_; }
  int64_t numel() const;
  int64_t element_size() const;
  ScalarType scalar_type() const { return object_->dtype; }
  TensorOptions options() const { return TensorOptions(scalar_type()); }
  int64_t storage_offset() const { return 0; }  // the runtime's tensors begin at their data
  std::string_view device() const { return "mps:0"; }

  Tensor unsqueeze(int64_t d) const;
  Tensor expand(IntArrayRef sizes) const;
  // Of what is not contiguous there is no copy here: an error.
  Tensor contiguous() const;
  Tensor& zero_();

  // For core/overlap.cpp, which compares addresses: the memory is the CPU's, too, and no size is a symbol.
  struct Storage {
    void* address;
    void* data() const { return address; }
    DeviceType device_type() const { return DeviceType::CPU; }
  };
  Storage storage() const;
  bool is_alias_of(const Tensor& other) const { return object_ == other.object_; }
  const Tensor* unsafeGetTensorImpl() const { return this; }
  bool has_symbolic_sizes_strides() const { return false; }

 private:
  struct Object {
    Object(AtenTensorHandle handle, bool owned);
    Object(const Object&) = delete;
    ~Object();
    AtenTensorHandle handle;
    bool owned;
    ScalarType dtype;
  };

  Tensor(AtenTensorHandle handle, bool owned);

  std::shared_ptr<Object> object_;
  std::vector<int64_t> sizes_, strides_;
};

Tensor empty(IntArrayRef sizes, TensorOptions options);
Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, TensorOptions options);

}  // namespace tmo::executorch::aten

namespace at = tmo::executorch::aten;
namespace c10 = tmo::executorch::aten;

namespace tmo::executorch {

// Throws when a function of the runtime has failed.
void require(AOTITorchError error, const char* function);

}  // namespace tmo::executorch

// Every error is one sentence, for the log; the runtime has one code for all of them.
#define TORCH_CHECK(condition, ...)                                    \
  do {                                                                 \
    if (!(condition)) throw std::runtime_error(c10::str(__VA_ARGS__)); \
  } while (false)
#define TORCH_CHECK_VALUE TORCH_CHECK
#define TORCH_CHECK_INDEX TORCH_CHECK
#define TORCH_CHECK_NOT_IMPLEMENTED TORCH_CHECK
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
