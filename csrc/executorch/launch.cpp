// csrc/mps/launch.h on ExecuTorch's Metal runtime, by its C functions.
#include "../mps/launch.h"

#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "../mps/shaders.h"

namespace tmo::mps {
namespace {

using executorch::require;

const char* source_of(const std::string& library) {
  for (size_t i = 0; i < kShaderCount; ++i) {
    if (library == kShaders[i].library) return kShaders[i].source;
  }
  TORCH_INTERNAL_ASSERT(false, "no shader library is named ", library);
}

// Libraries and kernels are made on first use and kept: the runtime makes a new kernel each time it is asked for one.
AOTIMetalKernelFunctionHandle find(const std::string& library, const std::string& kernel) {
  static std::mutex mutex;
  static std::map<std::string, AOTIMetalShaderLibraryHandle> libraries;
  static std::map<std::pair<std::string, std::string>, AOTIMetalKernelFunctionHandle> kernels;
  const std::lock_guard lock(mutex);
  auto& loaded = libraries[library];
  if (!loaded) {
    require(aoti_torch_mps_create_shader_library(source_of(library), &loaded), "aoti_torch_mps_create_shader_library");
  }
  auto& found = kernels[{library, kernel}];
  if (!found) {
    require(aoti_torch_mps_get_kernel_function(loaded, kernel.c_str(), &found), "aoti_torch_mps_get_kernel_function");
  }
  return found;
}

// A tensor on the CPU with these bytes. The runtime copies one of at most 4 KB when it is bound; of bytes alone its C
// functions can pass no more than eight.
at::Tensor tensor_of(const void* bytes, size_t size) {
  const int64_t sizes = static_cast<int64_t>(size), strides = 1;
  AtenTensorHandle handle;
  require(aoti_torch_empty_strided(1, &sizes, &strides, static_cast<int32_t>(at::kByte), aoti_torch_device_type_cpu(),
                                   0, &handle),
          "aoti_torch_empty_strided");
  const at::Tensor tensor = at::Tensor::own(handle);
  std::memcpy(tensor.storage().data(), bytes, size);
  return tensor;
}

// Every index must be bound: what stands in for a tensor that was not given is any other.
const at::Tensor& stand_in(std::initializer_list<Arg> args) {
  for (const Arg& arg : args) {
    if (arg.tensor() && arg.tensor()->defined()) return *arg.tensor();
  }
  TORCH_INTERNAL_ASSERT(false, "a kernel needs at least one tensor");
}

void bind(AOTIMetalKernelFunctionHandle function, std::initializer_list<Arg> args) {
  unsigned index = 0;
  for (const Arg& arg : args) {
    const at::Tensor tensor = !arg.tensor()             ? tensor_of(arg.bytes(), arg.size())
                              : arg.tensor()->defined() ? *arg.tensor()
                                                        : stand_in(args);
    require(aoti_torch_mps_set_arg_tensor(function, index++, tensor.handle()), "aoti_torch_mps_set_arg_tensor");
  }
}

// What runs in the command block; no exception may leave it, since the runtime that calls it is C.
struct Block {
  std::initializer_list<Arg> args;
  std::array<uint64_t, 3> threads, group;
  std::exception_ptr error;

  void encode(AOTIMetalKernelFunctionHandle function) {
    require(aoti_torch_mps_start_encoding(function), "aoti_torch_mps_start_encoding");
    bind(function, args);
    require(aoti_torch_mps_dispatch_array_with_group_size(function, threads.data(), 3, group.data(), 3),
            "aoti_torch_mps_dispatch_array_with_group_size");
  }

  static void run(AOTIMetalKernelFunctionHandle function, void* self) {
    auto& block = *static_cast<Block*>(self);
    try {
      block.encode(function);
    } catch (...) {
      block.error = std::current_exception();
    }
  }
};

}  // namespace

// The runtime says nothing of a kernel's largest threadgroup. Those of ours have at most 256 threads, half of the
// smallest limit known.
void launch(const char* library, const std::string& kernel, Size groups, Size group, std::initializer_list<Arg> args) {
  if (groups.x * groups.y * groups.z == 0) return;
  const auto function = find(library, kernel);
  Block block{args, {groups.x * group.x, groups.y * group.y, groups.z * group.z}, {group.x, group.y, group.z}, {}};
  require(aoti_torch_mps_run_command_block(function, Block::run, &block), "aoti_torch_mps_run_command_block");
  if (block.error) std::rethrow_exception(block.error);
}

// It cannot be asked for. Into how many parts the keys are split follows it, so a wrong number costs time only: this is
// the number of a Pro chip.
uint64_t gpu_cores() { return 20; }

}  // namespace tmo::mps
