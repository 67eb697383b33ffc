#include "launch.h"

#include <ATen/mps/MPSDevice.h>
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <c10/util/Exception.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "shaders.h"

namespace tmo::mps {

namespace {

using at::native::mps::MetalKernelFunction;
using at::native::mps::MetalShaderLibrary;

const Shader& shader(const std::string& library) {
  for (size_t i = 0; i < kShaderCount; ++i) {
    if (library == kShaders[i].library) return kShaders[i];
  }
  TORCH_INTERNAL_ASSERT(false, "no shader library is named ", library);
}

std::unique_ptr<MetalShaderLibrary> load(const Shader& shader) {
  if (shader.metallib_size != 0) {
    return std::make_unique<at::native::mps::PrecompiledMetalShaderLibrary>(
        std::vector<uint8_t>(shader.metallib, shader.metallib + shader.metallib_size));
  }
  return std::make_unique<at::native::mps::DynamicMetalShaderLibrary>(shader.source);
}

// Libraries and their kernels, made on first use. They are kept for ever: at exit, Metal may be gone before them.
MetalKernelFunction& find(const std::string& library, const std::string& kernel) {
  static auto& mutex = *new std::mutex;
  static auto& libraries = *new std::map<std::string, std::unique_ptr<MetalShaderLibrary>>;
  const std::lock_guard lock(mutex);
  auto& loaded = libraries[library];
  if (!loaded) loaded = load(shader(library));
  return *loaded->getCachedKernelFunctionPtr(kernel);
}

bool has_memory(const Arg& arg) { return arg.tensor() && arg.tensor()->defined() && arg.tensor()->numel() > 0; }

// What is bound for a tensor that was not given or is empty, since every index must be bound: any memory of the GPU.
const at::Tensor& stand_in(std::initializer_list<Arg> args) {
  for (const Arg& arg : args) {
    if (has_memory(arg)) return *arg.tensor();
  }
  TORCH_INTERNAL_ASSERT(false, "a kernel needs at least one tensor that is not empty");
}

}  // namespace

void launch(const char* library, const std::string& kernel, Size groups, Size group, std::initializer_list<Arg> args) {
  if (groups.x * groups.y * groups.z == 0) return;
  MetalKernelFunction& function = find(library, kernel);
  const uint64_t threads = group.x * group.y * group.z;
  const uint64_t limit = function.getMaxThreadsPerThreadgroup();
  TORCH_CHECK(threads <= limit, library, ": the kernel ", kernel, " needs threadgroups of ", threads,
              " threads, got a limit of ", limit, " on this GPU. Please report it with the name of the chip.");
  function.runCommandBlock([&] {
    function.startEncoding();
    unsigned index = 0;
    for (const Arg& arg : args) {
      if (arg.tensor()) {
        function.setArg(index++, has_memory(arg) ? *arg.tensor() : stand_in(args));
      } else {
        function.setArg(index++, arg.bytes(), arg.size());
      }
    }
    // Metal is told the number of threads.
    const std::array<uint64_t, 3> grid{groups.x * group.x, groups.y * group.y, groups.z * group.z};
    const std::array<uint64_t, 3> size{group.x, group.y, group.z};
    function.dispatch(c10::ArrayRef<uint64_t>(grid), c10::ArrayRef<uint64_t>(size));
  });
}

uint64_t gpu_cores() {
  static const uint64_t count = at::mps::MPSDevice::getInstance()->getCoreCount();
  return count;
}

}  // namespace tmo::mps
