// For torch.mps.compile_shader: torch's Metal classes, as Python sees them.
#pragma once

#include <pybind11/pybind11.h>

namespace simulator {

void bind_shaders(pybind11::module_& module);

}  // namespace simulator
