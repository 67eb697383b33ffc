// torch's host side of Metal: the classes of ATen/native/mps/MetalShaderLibrary.h, on the simulator. What Metal's own
// validation stops is an error here.
#include <ATen/core/TensorBase.h>
#include <ATen/mps/MPSDevice.h>
#include <ATen/native/mps/MetalShaderLibrary.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "backend.h"
#include "queue.h"

namespace simulator {

namespace {

constexpr unsigned kMaxBuffers = 31;
constexpr uint64_t kMaxBytes = 4096;
constexpr uint64_t kSimdWidth = 32;

// What the stream's encoder holds between startEncoding and dispatch.
struct Encoder {
  const Pipeline* pipeline = nullptr;
  std::map<unsigned, Binding> bindings;
};

std::recursive_mutex command_mutex;  // threads take turns at the encoder
thread_local int command_depth = 0;

const Pipeline& pipeline(MTLComputePipelineState_t state) { return *static_cast<const Pipeline*>(state); }

void* handle(int64_t library) { return reinterpret_cast<void*>(library); }
int64_t number(MTLLibrary_t library) { return reinterpret_cast<int64_t>(library); }

Encoder& encoding(void* encoder) {
  TORCH_CHECK(command_depth && encoder, "a kernel must be encoded within runCommandBlock, after startEncoding");
  return *static_cast<Encoder*>(encoder);
}

// From a tensor's first element to its last, in bytes.
size_t extent(const at::TensorBase& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return static_cast<size_t>(last + 1) * tensor.element_size();
}

void check_index(const Encoder& encoder, unsigned index) {
  TORCH_CHECK(index < kMaxBuffers, encoder.pipeline->name, ": the index of a buffer must be below ", kMaxBuffers,
              ", got ", index);
}

using Extent = std::array<uint64_t, 3>;

void check_extent(const Pipeline& pipeline, const char* what, const Extent& extent) {
  TORCH_CHECK(extent[0] && extent[1] && extent[2], pipeline.name, ": a ", what, " must not be empty, got ",
              c10::ArrayRef<uint64_t>(extent));
}

void enqueue(const Encoder& encoder, const Extent& threads, const Extent& group) {
  const Pipeline& pipeline = *encoder.pipeline;
  const uint64_t limit = backend().max_threads(pipeline.number);
  check_extent(pipeline, "grid", threads);
  check_extent(pipeline, "threadgroup", group);
  TORCH_CHECK(group[0] * group[1] * group[2] <= limit, pipeline.name, ": a threadgroup must have at most ", limit,
              " threads, got ", c10::ArrayRef<uint64_t>(group));
  Launch launch{&pipeline, {}, threads, group};
  for (const auto& [index, binding] : encoder.bindings) launch.bindings.push_back(binding);
  enqueue(std::move(launch));
}

}  // namespace

}  // namespace simulator

namespace at::native::mps {

using namespace simulator;

MetalKernelFunction::MetalKernelFunction(MTLComputePipelineState_t state, MTLFunction_t function)
    : cps(state), func(function) {}
MetalKernelFunction::~MetalKernelFunction() = default;

uint64_t MetalKernelFunction::getMaxThreadsPerThreadgroup() const {
  return backend().max_threads(pipeline(cps).number);
}
uint64_t MetalKernelFunction::getThreadExecutionWidth() const { return kSimdWidth; }
uint64_t MetalKernelFunction::getStaticThreadGroupMemoryLength() const {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the simulator knows threadgroup memory only while a kernel runs");
}

void MetalKernelFunction::runCommandBlock(std::function<void(void)> block) {
  const std::lock_guard lock(command_mutex);
  struct Depth {
    Depth() { ++command_depth; }
    ~Depth() { --command_depth; }
  } depth;
  block();
}

void MetalKernelFunction::startEncoding() {
  static auto& only = *new Encoder;
  encoder = &only;
  encoding(encoder) = {&pipeline(cps), {}};
}

void MetalKernelFunction::setArg(unsigned index, const TensorBase& tensor) {
  Encoder& e = encoding(encoder);
  check_index(e, index);
  TORCH_CHECK(tensor.device().is_mps(), e.pipeline->name, ": a tensor must be on mps, got one on ", tensor.device());
  // torch binds null for a tensor without memory.
  if (!tensor.storage().data()) {
    e.bindings[index] = {index, std::make_shared<Memory>(0), 0, 0, {}};
    return;
  }
  auto memory = memory_of(tensor.storage().data());
  const size_t offset = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
  const size_t size = extent(tensor);
  TORCH_CHECK(offset + size <= memory->size, e.pipeline->name, ": a tensor must lie in its buffer of ", memory->size,
              " bytes, got offset ", offset, " and size ", size);
  e.bindings[index] = {index, std::move(memory), offset, size, {}};
}

void MetalKernelFunction::setArg(unsigned index, const void* bytes, uint64_t size) {
  Encoder& e = encoding(encoder);
  check_index(e, index);
  TORCH_CHECK(size > 0 && size <= kMaxBytes, e.pipeline->name, ": the bytes of an argument must be 1 to ", kMaxBytes,
              ", got ", size);
  e.bindings[index] = {index, nullptr, 0, 0, std::string(static_cast<const char*>(bytes), size)};
}

void MetalKernelFunction::setErrorBufferIndex(unsigned) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the simulated mps device has no error buffer");
}

void MetalKernelFunction::dispatch(uint64_t length, std::optional<uint64_t> group) {
  const uint64_t limit = getMaxThreadsPerThreadgroup();
  enqueue(encoding(encoder), {length, 1, 1}, {std::min(group.value_or(limit), limit), 1, 1});
}

void MetalKernelFunction::dispatch(c10::ArrayRef<uint64_t> length, c10::OptionalArrayRef<uint64_t> group) {
  TORCH_CHECK(!length.empty() && length.size() <= 3, "a grid must have 1 to 3 dimensions, got ", length.size());
  TORCH_CHECK(!group || group->size() == length.size(), "a threadgroup must have the grid's number of dimensions");
  Extent threads{1, 1, 1}, size{group ? 1 : getMaxThreadsPerThreadgroup(), 1, 1};
  std::copy(length.begin(), length.end(), threads.begin());
  if (group) std::copy(group->begin(), group->end(), size.begin());
  enqueue(encoding(encoder), threads, size);
}

MetalShaderLibrary::~MetalShaderLibrary() = default;
DynamicMetalShaderLibrary::~DynamicMetalShaderLibrary() = default;

MTLLibrary_t MetalShaderLibrary::compileLibrary(const std::string& source) { return handle(backend().compile(source)); }

MTLLibrary_t MetalShaderLibrary::getLibrary() {
  if (!library) library = compileLibrary(shaderSource);
  return library;
}

MTLLibrary_t MetalShaderLibrary::getLibrary(const std::initializer_list<std::string>&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the simulated mps device has no libraries with parameters");
}

std::pair<MTLComputePipelineState_t, MTLFunction_t> MetalShaderLibrary::getLibraryPipelineState(
    MTLLibrary_t lib, const std::string& name) {
  auto& cached = cplMap[name];
  if (!cached.first) {
    TORCH_CHECK(hasFunction(name), "Failed to create function state object for: ", name);
    auto* made = new Pipeline{backend().kernel(number(lib), name), name};
    cached = {made, made};
  }
  return cached;
}

std::vector<std::string> MetalShaderLibrary::getFunctionNames() { return backend().names(number(getLibrary())); }

bool MetalShaderLibrary::hasFunction(const std::string& name) {
  const auto names = getFunctionNames();
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::shared_ptr<MetalKernelFunction> MetalShaderLibrary::getKernelFunction(const std::string& name) {
  const auto [state, function] = getLibraryPipelineState(getLibrary(), name);
  return std::make_shared<MetalKernelFunction>(state, function);
}

MetalKernelFunction* MetalShaderLibrary::getCachedKernelFunctionPtr(const std::string& name) {
  auto& cached = kernelCache[name];
  if (!cached) {
    const auto [state, function] = getLibraryPipelineState(getLibrary(), name);
    cached = std::make_unique<MetalKernelFunction>(state, function);
  }
  return cached.get();
}

PrecompiledMetalShaderLibrary::PrecompiledMetalShaderLibrary(std::vector<uint8_t>) : MetalShaderLibrary("") {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the simulated mps device runs no compiled libraries");
}
PrecompiledMetalShaderLibrary::~PrecompiledMetalShaderLibrary() = default;

}  // namespace at::native::mps

namespace at::mps {

MPSDevice* MPSDevice::_device = nullptr;
MPSDevice::MPSDevice() : _mtl_device(nullptr) {}
MPSDevice::~MPSDevice() = default;
MPSDevice* MPSDevice::getInstance() {
  static MPSDevice* only = new MPSDevice;
  return only;
}
unsigned MPSDevice::getCoreCount() const { return static_cast<unsigned>(simulator::backend().cores); }

}  // namespace at::mps
