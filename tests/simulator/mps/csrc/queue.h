// The device's stream: launches wait here until somebody needs their results.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "buffer.h"

namespace simulator {

// A compiled kernel, kept for ever.
struct Pipeline {
  int64_t number;  // by which Python knows it
  std::string name;
};

// What a buffer index of a kernel is bound to: a part of a buffer, or bytes.
struct Binding {
  unsigned index;
  std::shared_ptr<Memory> memory;
  size_t offset = 0, size = 0;
  std::string bytes;
};

struct Launch {
  const Pipeline* pipeline;
  std::vector<Binding> bindings;
  std::array<uint64_t, 3> threads, group;
};

void enqueue(Launch launch);
// Runs what waits. The first launch that fails throws, and those after it are dropped.
void synchronize();
bool idle();

}  // namespace simulator
