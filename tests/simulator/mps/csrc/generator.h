// Random numbers of the device: those that the CPU would draw from the same seed, in a stream of their own.
#pragma once

#include <ATen/core/Generator.h>

namespace simulator {

at::Generator new_generator();
const at::Generator& default_generator();
// The generator of the CPU that draws for `generator`, which is one of the above.
const at::Generator& on_cpu(const at::Generator& generator);

}  // namespace simulator
