#include "shader.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <variant>

namespace simulator {

namespace {

namespace py = pybind11;
using at::native::mps::DynamicMetalShaderLibrary;
using at::native::mps::MetalKernelFunction;

using Argument = std::variant<at::Tensor, std::string>;
using Extent = std::vector<uint64_t>;

Argument unpack(py::handle value) {
  if (THPVariable_Check(value.ptr())) return THPVariable_Unpack(value.ptr());
  return static_cast<std::string>(py::cast<py::bytes>(value));
}

void launch(MetalKernelFunction& kernel, const py::list& values, const Extent& threads,
            const std::optional<Extent>& group) {
  std::vector<Argument> arguments;
  for (const py::handle value : values) arguments.push_back(unpack(value));
  const py::gil_scoped_release unlocked;
  kernel.runCommandBlock([&] {
    kernel.startEncoding();
    unsigned index = 0;
    for (const Argument& argument : arguments) {
      if (const auto* tensor = std::get_if<at::Tensor>(&argument)) {
        kernel.setArg(index++, *tensor);
      } else {
        const auto& bytes = std::get<std::string>(argument);
        kernel.setArg(index++, bytes.data(), bytes.size());
      }
    }
    kernel.dispatch(threads, group ? c10::OptionalArrayRef<uint64_t>(*group) : std::nullopt);
  });
}

}  // namespace

void bind_shaders(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> unlocked;
  py::class_<MetalKernelFunction, std::shared_ptr<MetalKernelFunction>>(module, "KernelFunction")
      .def("launch", &launch)
      .def_property_readonly("max_threads", &MetalKernelFunction::getMaxThreadsPerThreadgroup)
      .def_property_readonly("execution_width", &MetalKernelFunction::getThreadExecutionWidth);
  py::class_<DynamicMetalShaderLibrary>(module, "ShaderLibrary")
      .def(py::init<const std::string&>(), unlocked)
      .def("names", &DynamicMetalShaderLibrary::getFunctionNames, unlocked)
      .def("kernel", &DynamicMetalShaderLibrary::getKernelFunction, unlocked);
}

}  // namespace simulator
