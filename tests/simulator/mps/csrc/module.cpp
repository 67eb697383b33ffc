// What Python sees of the device.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "backend.h"
#include "shader.h"

namespace simulator {

Backend& backend() {
  static auto& only = *new Backend;
  return only;
}

}  // namespace simulator

namespace py = pybind11;

PYBIND11_MODULE(simulator_mps, m) {
  using namespace simulator;

  py::class_<Binding>(m, "Binding")
      .def_readonly("index", &Binding::index)
      .def_property_readonly("is_buffer", [](const Binding& b) { return b.memory != nullptr; })
      .def_property_readonly("memory", [](const Binding& b) { return reinterpret_cast<uintptr_t>(b.memory->begin); })
      .def_property_readonly("memory_size", [](const Binding& b) { return b.memory->size; })
      .def_readonly("offset", &Binding::offset)
      .def_readonly("size", &Binding::size)
      .def_property_readonly("bytes", [](const Binding& b) { return py::bytes(b.bytes); });

  py::class_<Launch>(m, "Launch")
      .def_property_readonly("kernel", [](const Launch& launch) { return launch.pipeline->number; })
      .def_readonly("bindings", &Launch::bindings)
      .def_readonly("threads", &Launch::threads)
      .def_readonly("group", &Launch::group);

  py::class_<Backend>(m, "Backend")
      .def_readwrite("compile", &Backend::compile)
      .def_readwrite("names", &Backend::names)
      .def_readwrite("kernel", &Backend::kernel)
      .def_readwrite("run", &Backend::run)
      .def_readwrite("max_threads", &Backend::max_threads)
      .def_readwrite("cores", &Backend::cores);
  m.def("backend", &backend, py::return_value_policy::reference);
  m.def("synchronize", &synchronize);
  bind_shaders(m);
}
