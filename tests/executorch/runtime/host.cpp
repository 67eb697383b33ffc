// Runs the delegate of a .pte as ExecuTorch's Metal backend does, in a process that has no libtorch.
//
//   host <library> <weights> <folder> <calls>
//
// <folder>/inputs has a line a tensor: dtype, number of dimensions, sizes, strides, and a file of its bytes. Each call
// is given them anew; <folder>/outputs gets such a line a result.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "host.h"

extern "C" {
AOTITorchError aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t,
                                        TensorHandle*);
AOTITorchError aoti_torch_delete_tensor_object(TensorHandle);
}

namespace {

void expect(int32_t error, const char* what) {
  if (error) throw std::runtime_error(std::string(what) + " failed");
}

std::vector<char> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class... Parameters>
auto find(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (!found) throw std::runtime_error(std::string("no ") + name);
  return reinterpret_cast<int32_t (*)(Parameters...)>(found);
}

std::vector<TensorHandle> inputs(const std::string& folder) {
  std::vector<TensorHandle> tensors;
  std::ifstream list(folder + "/inputs");
  int32_t dtype;
  size_t dim;
  while (list >> dtype >> dim) {
    std::vector<int64_t> sizes(dim), strides(dim);
    for (auto& size : sizes) list >> size;
    for (auto& stride : strides) list >> stride;
    std::string path;
    list >> path;
    const std::vector<char> bytes = read(path);
    TensorHandle tensor;
    expect(aoti_torch_empty_strided(int64_t(dim), sizes.data(), strides.data(), dtype, kMps, 0, &tensor), "an input");
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor->data));
    tensors.push_back(tensor);
  }
  return tensors;
}

void write(const std::vector<TensorHandle>& results, const std::string& folder, int call) {
  std::ofstream list(folder + "/outputs", call ? std::ios::app : std::ios::trunc);
  for (size_t i = 0; i < results.size(); ++i) {
    const Tensor& tensor = *results[i];
    const std::string path = folder + "/output_" + std::to_string(call) + "_" + std::to_string(i);
    std::ofstream(path, std::ios::binary)
        .write(static_cast<const char*>(tensor.data), tensor.numel() * int64_t(element_size(tensor.dtype)));
    list << tensor.dtype << ' ' << tensor.sizes.size();
    for (const int64_t size : tensor.sizes) list << ' ' << size;
    for (const int64_t stride : tensor.strides) list << ' ' << stride;
    list << ' ' << path << '\n';
    expect(aoti_torch_delete_tensor_object(results[i]), "deleting a result");
  }
}

void refuse_libtorch() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("libtorch") != std::string::npos || line.find("libc10") != std::string::npos) {
      throw std::runtime_error("libtorch is in the process: " + line);
    }
  }
}

void run(const std::string& path, const std::string& weights_path, const std::string& folder, int calls) {
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  void* container = nullptr;
  const auto create =
      find<void**, size_t, const char*, const char*>(library, "AOTInductorModelContainerCreateWithDevice");
  expect(create(&container, 1, "mps", nullptr), "creating the container");
  const std::vector<char> weights = read(weights_path);
  if (!weights.empty()) {
    const auto update = find<void*, const char*>(library, "AOTInductorModelUpdateConstantsFromBlob");
    expect(update(container, weights.data()), "loading the weights");
  }
  size_t count = 0;
  expect(find<void*, size_t*>(library, "AOTInductorModelContainerGetNumOutputs")(container, &count), "counting");
  const auto call =
      find<void*, TensorHandle*, size_t, TensorHandle*, size_t, void*, void*>(library, "AOTInductorModelContainerRun");
  for (int i = 0; i < calls; ++i) {
    std::vector<TensorHandle> given = inputs(folder), results(count);
    expect(call(container, given.data(), given.size(), results.data(), count, nullptr, nullptr), "the call");
    synchronize();
    write(results, folder, i);
  }
  refuse_libtorch();
}

}  // namespace

int main(int, char** argv) {
  try {
    run(argv[1], argv[2], argv[3], std::atoi(argv[4]));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "host: " << error.what() << '\n';
    return 1;
  }
}
