// The C functions of ExecuTorch's Metal runtime that these ops use. They have the names and signatures of
// AOTInductor's, so the runtime's own headers are not needed; the application links the definitions.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

using AOTITorchError = int32_t;  // 0: no error
struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
struct AOTIMetalShaderLibraryOpaque;
using AOTIMetalShaderLibraryHandle = AOTIMetalShaderLibraryOpaque*;
struct AOTIMetalKernelFunctionOpaque;
using AOTIMetalKernelFunctionHandle = AOTIMetalKernelFunctionOpaque*;
using AOTIMetalCommandBlock = void (*)(AOTIMetalKernelFunctionHandle, void* user_data);

AOTITorchError aoti_torch_get_dim(AtenTensorHandle, int64_t* dim);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle, int64_t** sizes);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle, int64_t** strides);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle, int32_t* dtype);
AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle, void** data);
AOTITorchError aoti_torch_empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                        int32_t device_type, int32_t device_index, AtenTensorHandle* tensor);
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle);
int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_mps();

AOTITorchError aoti_torch_mps_create_shader_library(const char* source, AOTIMetalShaderLibraryHandle* library);
AOTITorchError aoti_torch_mps_get_kernel_function(AOTIMetalShaderLibraryHandle, const char* name,
                                                  AOTIMetalKernelFunctionHandle* function);
AOTITorchError aoti_torch_mps_run_command_block(AOTIMetalKernelFunctionHandle, AOTIMetalCommandBlock, void* user_data);
AOTITorchError aoti_torch_mps_start_encoding(AOTIMetalKernelFunctionHandle);
AOTITorchError aoti_torch_mps_set_arg_tensor(AOTIMetalKernelFunctionHandle, unsigned index, AtenTensorHandle);
AOTITorchError aoti_torch_mps_dispatch_array_with_group_size(AOTIMetalKernelFunctionHandle, const uint64_t* threads,
                                                             size_t dim, const uint64_t* group, size_t group_dim);

}  // extern "C"
