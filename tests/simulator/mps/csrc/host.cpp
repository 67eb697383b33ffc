#include "host.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "buffer.h"
#include "queue.h"

namespace simulator {

namespace {

c10::DataPtr shared(const std::shared_ptr<Memory>& memory) {
  using Owner = std::shared_ptr<Memory>;
  auto* owner = new Owner(memory);
  return {memory->begin, owner, [](void* p) { delete static_cast<Owner*>(p); }, c10::Device(c10::kCPU)};
}

}  // namespace

at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_mps()) return tensor;
  synchronize();
  const c10::Storage& storage = tensor.storage();
  c10::DataPtr data(nullptr, c10::Device(c10::kCPU));
  if (storage.data()) data = shared(memory_of(storage.data()));
  auto host_storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                                            std::move(data), nullptr, false);
  auto result = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(host_storage)),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  result._set_conj(tensor.is_conj());
  result._set_neg(tensor.is_neg());
  return result;
}

}  // namespace simulator
