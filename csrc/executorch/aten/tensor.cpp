#include "tensor.h"

#include <algorithm>

namespace tmo::executorch::aten {

std::ostream& operator<<(std::ostream& out, ScalarType dtype) {
  static constexpr std::array names{"Byte",  "Char",   "Short",       "Int",          "Long",          "Half",
                                    "Float", "Double", "ComplexHalf", "ComplexFloat", "ComplexDouble", "Bool",
                                    "QInt8", "QUInt8", "QInt32",      "BFloat16"};
  const auto number = static_cast<size_t>(dtype);
  return number < names.size() ? out << names[number] : out << "dtype " << number;
}

namespace {

int64_t bytes_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Bool:
      return 1;
    case ScalarType::Short:
    case ScalarType::Half:
    case ScalarType::BFloat16:
      return 2;
    case ScalarType::Int:
    case ScalarType::Float:
      return 4;
    default:
      return 8;
  }
}

std::vector<int64_t> contiguous_strides(IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  return strides;
}

}  // namespace

Tensor::Object::Object(AtenTensorHandle handle, bool owned) : handle(handle), owned(owned) {
  int32_t number;
  // float16, which the runtime does not have, fails here.
  require(aoti_torch_get_dtype(handle, &number), "aoti_torch_get_dtype");
  dtype = ScalarType(number);
}

Tensor::Object::~Object() {
  if (owned) aoti_torch_delete_tensor_object(handle);
}

Tensor::Tensor(AtenTensorHandle handle, bool owned) : object_(std::make_shared<Object>(handle, owned)) {
  int64_t dim, *sizes, *strides;
  require(aoti_torch_get_dim(handle, &dim), "aoti_torch_get_dim");
  require(aoti_torch_get_sizes(handle, &sizes), "aoti_torch_get_sizes");
  require(aoti_torch_get_strides(handle, &strides), "aoti_torch_get_strides");
  sizes_.assign(sizes, sizes + dim), strides_.assign(strides, strides + dim);
}

AtenTensorHandle Tensor::release() {
  object_->owned = false;
  return object_->handle;
}

int64_t Tensor::numel() const {
  int64_t count = 1;
  for (const int64_t size : sizes_) count *= size;
  return count;
}

int64_t Tensor::element_size() const { return bytes_of(scalar_type()); }

Tensor Tensor::unsqueeze(int64_t d) const {
  Tensor view = *this;
  view.sizes_.insert(view.sizes_.begin() + d, 1);
  view.strides_.insert(view.strides_.begin() + d, 0);
  return view;
}

Tensor Tensor::expand(IntArrayRef sizes) const {
  Tensor view = *this;
  view.sizes_.assign(sizes.begin(), sizes.end());
  view.strides_.assign(sizes.size(), 0);
  const int64_t added = view.dim() - dim();
  for (int64_t d = 0; d < dim(); ++d) {
    if (size(d) == sizes[d + added]) view.strides_[d + added] = stride(d);
  }
  return view;
}

Tensor Tensor::contiguous() const {
  const std::vector<int64_t> strides = contiguous_strides(sizes_);
  for (int64_t d = 0; d < dim(); ++d) {
    TORCH_CHECK(size(d) == 1 || stride(d) == strides[d],
                "torch_metal_ops: ExecuTorch cannot copy to contiguous memory what is in the wrong order, got strides ",
                this->strides(), " for shape ", sizes(), ". Call .contiguous() in the model.");
  }
  return *this;
}

Tensor& Tensor::zero_() {
  TORCH_CHECK(false, "torch_metal_ops: ExecuTorch has no tensors without elements, got a sum over none. Give a key.");
}

Tensor::Storage Tensor::storage() const {
  void* data;
  require(aoti_torch_get_data_ptr(handle(), &data), "aoti_torch_get_data_ptr");
  return {data};
}

Tensor empty(IntArrayRef sizes, TensorOptions options) {
  return empty_strided(sizes, contiguous_strides(sizes), options);
}

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, TensorOptions options) {
  AtenTensorHandle handle;
  require(
      aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.begin(), strides.begin(),
                               static_cast<int32_t>(options.scalar_type()), aoti_torch_device_type_mps(), 0, &handle),
      "aoti_torch_empty_strided");
  return Tensor::own(handle);
}

}  // namespace tmo::executorch::aten

namespace tmo::executorch {

void require(AOTITorchError error, const char* function) {
  TORCH_CHECK(error == 0, "torch_metal_ops: ", function, " failed with code ", error,
              ". ExecuTorch's log has its reason; float16, for one, is a dtype that its Metal runtime does not have.");
}

}  // namespace tmo::executorch
