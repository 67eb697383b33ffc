// What packages of AOTInductor call on mps and a Linux libtorch lacks: torch/csrc/inductor/aoti_torch/c/shim_mps.h, the
// functions of generated/c_shim_mps.h that the packages in the tests need, and the runner that opens a package.
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/topk.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>
#include <torch/csrc/inductor/aoti_torch/c/shim_mps.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_mps.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

#include <cstring>

#include "buffer.h"
#include "queue.h"

namespace {

using at::native::mps::DynamicMetalShaderLibrary;
using at::native::mps::MetalKernelFunction;
using Extent = c10::ArrayRef<uint64_t>;

at::Tensor& tensor(AtenTensorHandle handle) { return *torch::aot_inductor::tensor_handle_to_tensor_pointer(handle); }

DynamicMetalShaderLibrary* library(AOTIMetalShaderLibraryHandle handle) {
  return reinterpret_cast<DynamicMetalShaderLibrary*>(handle);
}

MetalKernelFunction& kernel(AOTIMetalKernelFunctionHandle handle) {
  return *reinterpret_cast<MetalKernelFunction*>(handle);
}

template <class Body>
AOTITorchError attempt(const Body& body) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ body(); })
}

}  // namespace

AOTITorchError aoti_torch_mps_create_shader_library(const char* source, AOTIMetalShaderLibraryHandle* result) {
  return attempt(
      [&] { *result = reinterpret_cast<AOTIMetalShaderLibraryHandle>(new DynamicMetalShaderLibrary(source)); });
}
AOTITorchError aoti_torch_mps_delete_shader_library(AOTIMetalShaderLibraryHandle handle) {
  return attempt([&] { delete library(handle); });
}
AOTITorchError aoti_torch_mps_get_kernel_function(AOTIMetalShaderLibraryHandle handle, const char* name,
                                                  AOTIMetalKernelFunctionHandle* result) {
  return attempt([&] {
    *result = reinterpret_cast<AOTIMetalKernelFunctionHandle>(library(handle)->getCachedKernelFunctionPtr(name));
  });
}

void aoti_torch_mps_shared_callback(AOTIMetalKernelFunctionHandle function, void* block) {
  (*static_cast<std::function<void(AOTIMetalKernelFunctionHandle)>*>(block))(function);
}
AOTITorchError aoti_torch_mps_run_command_block(AOTIMetalKernelFunctionHandle function,
                                                aoti_torch_mps_command_block_callback_t callback, void* data) {
  return attempt([&] { kernel(function).runCommandBlock([&] { callback(function, data); }); });
}
AOTITorchError aoti_torch_mps_start_encoding(AOTIMetalKernelFunctionHandle function) {
  return attempt([&] { kernel(function).startEncoding(); });
}
AOTITorchError aoti_torch_mps_set_arg_tensor(AOTIMetalKernelFunctionHandle function, unsigned index,
                                             AtenTensorHandle value) {
  return attempt([&] { kernel(function).setArg(index, tensor(value)); });
}
AOTITorchError aoti_torch_mps_set_arg_int(AOTIMetalKernelFunctionHandle function, unsigned index, int64_t value) {
  return attempt([&] { kernel(function).setArg(index, value); });
}
AOTITorchError aoti_torch_mps_dispatch_single(AOTIMetalKernelFunctionHandle function, uint64_t length) {
  return attempt([&] { kernel(function).dispatch(length); });
}
AOTITorchError aoti_torch_mps_dispatch_single_with_group_size(AOTIMetalKernelFunctionHandle function, uint64_t length,
                                                              uint64_t group) {
  return attempt([&] { kernel(function).dispatch(length, group); });
}
AOTITorchError aoti_torch_mps_dispatch_array(AOTIMetalKernelFunctionHandle function, const uint64_t* length,
                                             size_t dimensions) {
  return attempt([&] { kernel(function).dispatch(Extent(length, dimensions)); });
}
AOTITorchError aoti_torch_mps_dispatch_array_with_group_size(AOTIMetalKernelFunctionHandle function,
                                                             const uint64_t* length, size_t dimensions,
                                                             const uint64_t* group, size_t group_dimensions) {
  return attempt([&] { kernel(function).dispatch(Extent(length, dimensions), Extent(group, group_dimensions)); });
}

AOTITorchError aoti_torch_mps_malloc(void** buffer, size_t bytes) {
  return attempt([&] { *buffer = bytes ? simulator::new_buffer(bytes) : nullptr; });
}
AOTITorchError aoti_torch_mps_free(void* buffer) {
  return attempt([&] {
    if (buffer) simulator::release_buffer(buffer);
  });
}
AOTITorchError aoti_torch_mps_memcpy(void* buffer, size_t offset, size_t read, size_t bytes, uint8_t* source) {
  return attempt([&] { std::memcpy(simulator::memory_of(buffer)->begin + offset, source + read, bytes); });
}
AOTITorchError aoti_torch_mps_copy_buffer(void* from, void* to, size_t bytes, size_t from_offset, size_t to_offset) {
  return attempt([&] {
    simulator::synchronize();
    std::memcpy(simulator::memory_of(to)->begin + to_offset, simulator::memory_of(from)->begin + from_offset, bytes);
  });
}

AOTITorchError aoti_torch_mps_mm_out(AtenTensorHandle out, AtenTensorHandle a, AtenTensorHandle b) {
  return attempt([&] { at::mm_out(tensor(out), tensor(a), tensor(b)); });
}
AOTITorchError aoti_torch_mps_bmm_out(AtenTensorHandle out, AtenTensorHandle a, AtenTensorHandle b) {
  return attempt([&] { at::bmm_out(tensor(out), tensor(a), tensor(b)); });
}
AOTITorchError aoti_torch_mps_addmm_out(AtenTensorHandle out, AtenTensorHandle sum, AtenTensorHandle a,
                                        AtenTensorHandle b, double beta, double alpha) {
  return attempt([&] { at::addmm_out(tensor(out), tensor(sum), tensor(a), tensor(b), beta, alpha); });
}
AOTITorchError aoti_torch_mps_baddbmm_out(AtenTensorHandle out, AtenTensorHandle sum, AtenTensorHandle a,
                                          AtenTensorHandle b, double beta, double alpha) {
  return attempt([&] { at::baddbmm_out(tensor(out), tensor(sum), tensor(a), tensor(b), beta, alpha); });
}

AOTITorchError aoti_torch_mps_topk(AtenTensorHandle self, int64_t k, int64_t dim, int32_t largest, int32_t sorted,
                                   AtenTensorHandle* values, AtenTensorHandle* indices) {
  return attempt([&] {
    auto [top, where] = at::topk(tensor(self), k, dim, largest, sorted);
    *values = torch::aot_inductor::new_tensor_handle(std::move(top));
    *indices = torch::aot_inductor::new_tensor_handle(std::move(where));
  });
}
AOTITorchError aoti_torch_mps_convolution(AtenTensorHandle input, AtenTensorHandle weight, AtenTensorHandle* bias,
                                          const int64_t* stride, int64_t strides, const int64_t* padding,
                                          int64_t paddings, const int64_t* dilation, int64_t dilations,
                                          int32_t transposed, const int64_t* output_padding, int64_t output_paddings,
                                          int64_t groups, AtenTensorHandle* result) {
  return attempt([&] {
    std::optional<at::Tensor> added;
    if (bias) added = tensor(*bias);
    *result = torch::aot_inductor::new_tensor_handle(
        at::convolution(tensor(input), tensor(weight), added, {stride, static_cast<size_t>(strides)},
                        {padding, static_cast<size_t>(paddings)}, {dilation, static_cast<size_t>(dilations)},
                        transposed, {output_padding, static_cast<size_t>(output_paddings)}, groups));
  });
}

namespace torch::inductor {

namespace {

struct Runner final : AOTIModelContainerRunner {
  Runner(const std::string& path, size_t models, bool single_threaded)
      : AOTIModelContainerRunner(path, models, "mps", "", single_threaded) {}
};

std::unique_ptr<AOTIModelContainerRunner> create(const std::string& path, size_t models, const std::string&,
                                                 const std::string&, bool single_threaded) {
  return std::make_unique<Runner>(path, models, single_threaded);
}

const RegisterAOTIModelRunner registration("mps", &create);

}  // namespace

}  // namespace torch::inductor
