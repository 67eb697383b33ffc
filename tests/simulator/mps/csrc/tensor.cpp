// Operations that make tensors, move their data and look at it.
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <torch/library.h>

#include <cstring>

#include "allocator.h"
#include "buffer.h"
#include "host.h"
#include "queue.h"

namespace simulator {

namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::MPS);

at::ScalarType allowed(optional<at::ScalarType> dtype) {
  const at::ScalarType type = c10::dtype_or_default(dtype);
  TORCH_CHECK_TYPE(type != at::kDouble && type != at::kComplexDouble,
                   "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please "
                   "use float32 instead.");
  return type;
}

Tensor empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>, optional<at::Device>,
             optional<bool>, optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator(), kKeys, allowed(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype, optional<at::Layout>,
                     optional<at::Device>, optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, allowed(dtype));
}

Tensor& copy_(Tensor& self, const Tensor& source, bool) {
  Tensor target = on_host(self);
  target.copy_(on_host(source));
  return self;
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool) {
  on_host(target).copy_(on_host(source));
  return target;
}

void grow(c10::StorageImpl& storage, size_t bytes) {
  if (bytes <= storage.nbytes()) return;
  synchronize();
  c10::DataPtr data = allocator().allocate(bytes);
  if (storage.nbytes()) {
    std::memcpy(memory_of(data.get())->begin, memory_of(storage.data())->begin, storage.nbytes());
  }
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}

void grow_to_fit(const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  grow(*tensor.storage().unsafeGetStorageImpl(),
       at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                        tensor.storage_offset()));
}

const Tensor& resize_(const Tensor& self, IntArrayRef size, optional<at::MemoryFormat> format) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  grow_to_fit(self);
  return self;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  if (source.sizes() != target.sizes()) resize_(target, source.sizes(), std::nullopt);
  return copy_from(source, target, false);
}

at::Scalar local_scalar_dense(const Tensor& self) { return at::_local_scalar_dense(on_host(self)); }

Tensor& set_part(Tensor& self, c10::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (stride.data()) {
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  }
  grow_to_fit(self);
  return self;
}

Tensor& set_storage(Tensor& self, c10::Storage source) {
  const int64_t length = static_cast<int64_t>(source.nbytes() / self.element_size());
  return set_part(self, std::move(source), 0, {length}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_part(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_nothing(Tensor& self) {
  const Tensor nothing = empty({0}, self.scalar_type(), {}, {}, {}, {});
  return set_tensor(self, nothing);
}

bool is_set_to(const Tensor& self, const Tensor& other) {
  return self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
         self.strides() == other.strides();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize_);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("set_", &set_nothing);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_part);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("is_set_to", &is_set_to);
}

}  // namespace simulator
