// The simulator of the shading language, which is Python: launches.py. It knows libraries and kernels by number.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "queue.h"

namespace simulator {

struct Backend {
  std::function<int64_t(const std::string& source)> compile;
  std::function<std::vector<std::string>(int64_t library)> names;
  std::function<int64_t(int64_t library, const std::string& name)> kernel;
  std::function<void(const Launch&)> run;
  std::function<uint64_t(int64_t kernel)> max_threads;
  uint64_t cores = 0;
};

Backend& backend();

}  // namespace simulator
