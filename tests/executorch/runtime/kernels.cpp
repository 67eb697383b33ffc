// Metal kernels by ExecuTorch's rules, run by the simulator: the arguments are a tensor or eight bytes, a small tensor
// of the CPU is copied when it is bound, and what is dispatched runs when the stream is waited for.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "abi.h"
#include "host.h"

namespace {

constexpr size_t kStackBytes = 256 * 1024, kArenaBytes = 4 * 1024 * 1024;
constexpr uint64_t kMaxThreads = 1024;

using Run = void (*)(msl::Dispatch*);

struct Argument {
  void* buffer = nullptr;
  std::vector<char> bytes;
};

struct Library {
  std::string source;
};

struct Function {
  std::string name;
  Run run;
  bool encoding = false;
  std::map<unsigned, Argument> arguments;
};

struct Launch {
  Function function;
  std::array<uint64_t, 3> threads, group;
};

std::deque<Launch> queue;

AOTITorchError fail(const std::string& what) {
  std::fprintf(stderr, "host: %s\n", what.c_str());
  return kInternal;
}

// The kernel as machine code: $MSL_COMPILE, which is given a file with the source and the kernel's name, prints where.
Run compile(const std::string& source, const std::string& name) {
  static std::map<std::pair<std::string, std::string>, Run> compiled;
  Run& run = compiled[{source, name}];
  if (run) return run;
  char path[] = "/tmp/host_XXXXXX";
  if (const int file = mkstemp(path); file < 0) throw std::runtime_error("no temporary file");
  std::ofstream(path) << source << '\n';
  const std::string command = std::string(std::getenv("MSL_COMPILE")) + " " + path + " '" + name + "'";
  std::string library(4096, '\0');
  FILE* output = popen(command.c_str(), "r");
  library.resize(fread(library.data(), 1, library.size(), output));
  const int status = pclose(output);
  std::remove(path);
  while (!library.empty() && library.back() == '\n') library.pop_back();
  void* code = status == 0 ? dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!code) throw std::runtime_error("cannot compile " + name);
  run = reinterpret_cast<Run>(dlsym(code, "msl_run"));
  return run;
}

char* zeros(size_t bytes) { return static_cast<char*>(std::calloc(bytes, 1)); }

void run(Launch& launch) {
  static char* stacks = zeros(kStackBytes * msl::kMaxThreads);
  static char* arena = zeros(kArenaBytes);
  static char* nothing = zeros(1 << 16);
  msl::Dispatch dispatch{};
  std::fill(std::begin(dispatch.buffers), std::end(dispatch.buffers), nothing);
  for (auto& [index, argument] : launch.function.arguments) {
    dispatch.buffers[index] = argument.buffer ? argument.buffer : argument.bytes.data();
  }
  std::copy(launch.threads.begin(), launch.threads.end(), dispatch.grid);
  std::copy(launch.group.begin(), launch.group.end(), dispatch.group);
  msl::Finding finding{};
  dispatch.threadgroup_limit = 32768;
  dispatch.stacks = stacks, dispatch.stack_bytes = kStackBytes;
  dispatch.arena = arena, dispatch.arena_bytes = kArenaBytes;
  dispatch.findings = &finding, dispatch.finding_capacity = 1;
  launch.function.run(&dispatch);
  if (dispatch.finding_count) throw std::runtime_error(launch.function.name + ": " + finding.text);
}

AOTITorchError dispatch(Function* function, std::array<uint64_t, 3> threads, std::array<uint64_t, 3> group) {
  if (!function->encoding) return fail(function->name + " is dispatched without encoding");
  // Metal drops a launch whose group is too large, and says nothing.
  if (group[0] * group[1] * group[2] <= kMaxThreads) queue.push_back({*function, threads, group});
  function->encoding = false;
  return kOk;
}

}  // namespace

void synchronize() {
  for (; !queue.empty(); queue.pop_front()) run(queue.front());
}

extern "C" {

AOTITorchError aoti_torch_mps_create_shader_library(const char* source, Library** library) {
  *library = new Library{source};
  return kOk;
}

AOTITorchError aoti_torch_mps_delete_shader_library(Library* library) {
  delete library;
  return kOk;
}

AOTITorchError aoti_torch_mps_get_kernel_function(Library* library, const char* name, Function** function) {
  try {
    *function = new Function{name, compile(library->source, name), false, {}};
    return kOk;
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

AOTITorchError aoti_torch_mps_start_encoding(Function* function) {
  function->encoding = true;
  function->arguments.clear();
  return kOk;
}

AOTITorchError aoti_torch_mps_set_arg_tensor(Function* function, unsigned index, TensorHandle tensor) {
  const size_t bytes = size_t(tensor->numel()) * element_size(tensor->dtype);
  if (is_buffer(tensor->data)) {
    function->arguments[index] = {tensor->data, {}};
  } else if (bytes <= 4096) {
    const char* data = static_cast<const char*>(tensor->data);
    function->arguments[index] = {nullptr, {data, data + bytes}};
  } else {
    return fail("a large tensor of the CPU is bound");
  }
  return kOk;
}

AOTITorchError aoti_torch_mps_set_arg_int(Function* function, unsigned index, int64_t value) {
  const char* data = reinterpret_cast<const char*>(&value);
  function->arguments[index] = {nullptr, {data, data + sizeof value}};
  return kOk;
}

AOTITorchError aoti_torch_mps_dispatch_single(Function* function, uint64_t length) {
  return dispatch(function, {length, 1, 1}, {std::min(length, kMaxThreads), 1, 1});
}

AOTITorchError aoti_torch_mps_dispatch_single_with_group_size(Function* function, uint64_t length, uint64_t group) {
  return dispatch(function, {length, 1, 1}, {std::min(kMaxThreads, group ? group : length), 1, 1});
}

AOTITorchError aoti_torch_mps_dispatch_array_with_group_size(Function* function, const uint64_t* length, size_t dim,
                                                             const uint64_t* group, size_t) {
  std::array<uint64_t, 3> threads{1, 1, 1}, size{1, 1, 1};
  for (size_t d = 0; d < dim; ++d) threads[d] = length[d], size[d] = std::min(group[d], length[d]);
  if (dim == 1) size[0] = std::min(size[0], kMaxThreads);
  return dispatch(function, threads, size);
}

AOTITorchError aoti_torch_mps_dispatch_array(Function* function, const uint64_t* length, size_t dim) {
  if (dim == 1) return aoti_torch_mps_dispatch_single(function, length[0]);
  const uint64_t x = std::min<uint64_t>(dim == 2 ? 32 : 8, length[0]);
  const uint64_t y = dim == 2 ? kMaxThreads / x : std::min<uint64_t>(8, length[1]);
  const uint64_t z = dim == 2 ? 1 : kMaxThreads / (x * y);
  return dispatch(function, {length[0], length[1], dim == 2 ? 1 : length[2]}, {x, y, z});
}

void aoti_torch_mps_shared_callback(Function* function, void* block) {
  (*static_cast<std::function<void(Function*)>*>(block))(function);
}

AOTITorchError aoti_torch_mps_run_command_block(Function* function, void (*block)(Function*, void*), void* data) {
  block(function, data);
  return kOk;
}

}  // extern "C"
