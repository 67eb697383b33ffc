// Tensors by ExecuTorch's rules: there is no float16, a tensor begins at its data, a view that is not packed is a copy,
// and a buffer that is freed is the next one that is allocated, while the GPU may still be using it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>

#include "host.h"

namespace {

constexpr int32_t kUnowned = -1;

std::map<Tensor*, std::unique_ptr<Tensor>> tensors;
std::map<void*, int32_t> owners;        // of an address: how many tensors, or kUnowned
std::map<void*, size_t> buffers;        // the GPU's, with their bytes
std::multimap<size_t, void*> recycled;  // buffers that were freed

AOTITorchError fail(const char* what) {
  std::fprintf(stderr, "host: %s\n", what);
  return kInvalidArgument;
}

// Page by page, as Metal has it, and full of NaN.
void* allocate_buffer(size_t bytes) {
  if (bytes == 0) return nullptr;
  if (const auto found = recycled.lower_bound(bytes); found != recycled.end()) {
    void* data = found->second;
    buffers[data] = found->first;
    recycled.erase(found);
    return data;
  }
  const size_t size = (bytes + 16383) / 16384 * 16384;
  void* data = std::aligned_alloc(16384, size);
  std::memset(data, 0xff, size);
  buffers[data] = size;
  return data;
}

std::vector<int64_t> packed(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
  return strides;
}

// Whether the strides are those of contiguous memory with the dimensions in some order.
bool is_packed(const Tensor& tensor) {
  std::vector<size_t> order(tensor.sizes.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::erase_if(order, [&](size_t d) { return tensor.sizes[d] == 1; });
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tensor.strides[a] < tensor.strides[b]; });
  int64_t step = 1;
  for (const size_t d : order) {
    if (tensor.strides[d] != step) return false;
    step *= tensor.sizes[d];
  }
  return true;
}

void copy_packed(const Tensor& from, size_t d, const char*& source, char*& target) {
  const size_t item = element_size(from.dtype);
  if (d == from.sizes.size()) {
    std::memcpy(target, source, item);
    target += item;
    return;
  }
  const char* start = source;
  for (int64_t i = 0; i < from.sizes[d]; ++i) {
    source = start + i * from.strides[d] * int64_t(item);
    copy_packed(from, d + 1, source, target);
  }
  source = start;
}

TensorHandle keep(Tensor tensor) {
  auto kept = std::make_unique<Tensor>(std::move(tensor));
  TensorHandle handle = kept.get();
  tensors[handle] = std::move(kept);
  return handle;
}

Tensor describe(void* data, int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype) {
  Tensor tensor{data, {sizes, sizes + dim}, {}, dtype};
  tensor.strides = strides ? std::vector<int64_t>(strides, strides + dim) : packed(tensor.sizes);
  return tensor;
}

}  // namespace

int64_t Tensor::numel() const {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return count;
}

// 0 for what the runtime does not have.
size_t element_size(int32_t dtype) {
  switch (dtype) {
    case 0:
    case 11:
      return 1;  // uint8, bool
    case 15:
      return 2;  // bfloat16
    case 3:
    case 6:
      return 4;  // int32, float32
    case 4:
      return 8;  // int64
    default:
      return 0;
  }
}

bool is_buffer(const void* address) { return buffers.contains(const_cast<void*>(address)); }

extern "C" {

int32_t aoti_torch_device_type_cpu() { return kCpu; }
int32_t aoti_torch_device_type_mps() { return kMps; }
int32_t aoti_torch_layout_strided() { return 0; }
int32_t aoti_torch_dtype_uint8() { return 0; }
int32_t aoti_torch_dtype_int32() { return 3; }
int32_t aoti_torch_dtype_int64() { return 4; }
int32_t aoti_torch_dtype_int8() { return 1; }
int32_t aoti_torch_dtype_int16() { return 2; }
int32_t aoti_torch_dtype_float16() { return 5; }
int32_t aoti_torch_dtype_float32() { return 6; }
int32_t aoti_torch_dtype_bool() { return 11; }
int32_t aoti_torch_dtype_bfloat16() { return 15; }
size_t aoti_torch_dtype_element_size(int32_t dtype) { return element_size(dtype); }
bool aoti_torch_grad_mode_is_enabled() { return false; }
void aoti_torch_grad_mode_set_enabled(bool) {}

AOTITorchError aoti_torch_get_dim(TensorHandle tensor, int64_t* dim) {
  *dim = int64_t(tensor->sizes.size());
  return kOk;
}

AOTITorchError aoti_torch_get_sizes(TensorHandle tensor, int64_t** sizes) {
  *sizes = tensor->sizes.data();
  return kOk;
}

AOTITorchError aoti_torch_get_strides(TensorHandle tensor, int64_t** strides) {
  *strides = tensor->strides.data();
  return kOk;
}

AOTITorchError aoti_torch_get_numel(TensorHandle tensor, int64_t* numel) {
  *numel = tensor->numel();
  return kOk;
}

AOTITorchError aoti_torch_get_dtype(TensorHandle tensor, int32_t* dtype) {
  *dtype = tensor->dtype;
  return element_size(tensor->dtype) ? kOk : fail("a dtype that the runtime does not have");
}

AOTITorchError aoti_torch_get_data_ptr(TensorHandle tensor, void** data) {
  *data = tensor->data;
  return kOk;
}

AOTITorchError aoti_torch_get_storage_offset(TensorHandle, int64_t* offset) {
  *offset = 0;
  return kOk;
}

AOTITorchError aoti_torch_get_device_type(TensorHandle, int32_t* type) {
  *type = kMps;
  return kOk;
}

AOTITorchError aoti_torch_empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                        int32_t device_type, int32_t, TensorHandle* result) {
  if (!element_size(dtype)) return fail("a dtype that the runtime does not have");
  Tensor tensor = describe(nullptr, dim, sizes, strides, dtype);
  const size_t bytes = size_t(tensor.numel()) * element_size(dtype);
  tensor.data = device_type == kMps ? allocate_buffer(bytes) : std::aligned_alloc(16, (bytes + 15) / 16 * 16);
  if (!tensor.data) return fail("a tensor without elements cannot be allocated");
  owners[tensor.data] = 1;
  *result = keep(std::move(tensor));
  return kOk;
}

AOTITorchError aoti_torch_create_tensor_from_blob_v2(void* data, int64_t dim, const int64_t* sizes,
                                                     const int64_t* strides, int64_t offset, int32_t dtype, int32_t,
                                                     int32_t, TensorHandle* result, int32_t, const uint8_t*, int64_t) {
  if (!element_size(dtype)) return fail("a dtype that the runtime does not have");
  void* first = static_cast<char*>(data) + offset * int64_t(element_size(dtype));
  if (owners.contains(first)) return fail("two tensors over one address");
  if (first != data) buffers[first] = 0;  // as constants are, each in a buffer over its part of the weights
  owners[first] = kUnowned;
  *result = keep(describe(first, dim, sizes, strides, dtype));
  return kOk;
}

AOTITorchError aoti_torch_delete_tensor_object(TensorHandle handle) {
  if (!handle) return kOk;
  if (!tensors.contains(handle)) return fail("a tensor is deleted that does not exist");
  void* data = handle->data;
  tensors.erase(handle);
  int32_t& count = owners.at(data);
  if (count == kUnowned || --count > 0) return kOk;
  owners.erase(data);
  if (const auto buffer = buffers.find(data); buffer != buffers.end()) {
    recycled.emplace(buffer->second, data);
    buffers.erase(buffer);
  } else {
    std::free(data);
  }
  return kOk;
}

AOTITorchError aoti_torch_new_tensor_handle(TensorHandle original, TensorHandle* result) {
  if (owners.at(original->data) != kUnowned) ++owners[original->data];
  *result = keep(Tensor(*original));
  return kOk;
}

AOTITorchError aoti_torch__reinterpret_tensor(TensorHandle self, int64_t dim, const int64_t* sizes,
                                              const int64_t* strides, int64_t offset, TensorHandle* result) {
  char* data = static_cast<char*>(self->data) + offset * int64_t(element_size(self->dtype));
  Tensor view = describe(data, dim, sizes, strides, self->dtype);
  if (!is_packed(view)) {  // materialised by the CPU
    synchronize();
    const size_t bytes = size_t(view.numel()) * element_size(self->dtype);
    void* copy = allocate_buffer(bytes);
    const char* source = data;
    char* target = static_cast<char*>(copy);
    copy_packed(view, 0, source, target);
    view.data = copy, view.strides = packed(view.sizes);
    owners[copy] = 1;
  } else if (data != self->data) {
    buffers[data] = 0;
    owners[data] = kUnowned;
  } else if (owners.at(data) != kUnowned) {
    ++owners[data];
  }
  *result = keep(std::move(view));
  return kOk;
}

AOTITorchError aoti_torch_copy_(TensorHandle self, TensorHandle source, int32_t) {
  if (self->strides != source->strides || self->dtype != source->dtype) return kNotImplemented;
  synchronize();
  std::memcpy(self->data, source->data, size_t(source->numel()) * element_size(source->dtype));
  return kOk;
}

AOTITorchError aoti_torch_mps_malloc(void** data, size_t bytes) {
  *data = allocate_buffer(bytes);
  return kOk;
}

AOTITorchError aoti_torch_mps_free(void* data) {
  buffers.erase(data);
  std::free(data);
  return kOk;
}

AOTITorchError aoti_torch_mps_memcpy(void* buffer, size_t offset, size_t read, size_t bytes, uint8_t* source) {
  std::memcpy(static_cast<char*>(buffer) + offset, source + read, bytes);
  buffers.emplace(static_cast<char*>(buffer) + offset, 0);
  return kOk;
}

}  // extern "C"
