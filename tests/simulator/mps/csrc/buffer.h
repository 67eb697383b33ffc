// Metal buffers. What torch takes for a buffer's address is a handle: an address in a range that no one may touch, so
// that host code which reads or writes through an mps data_ptr() faults. (On a Mac it would hit an Objective-C object.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace simulator {

struct Memory {
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  char* const begin;
  const size_t size;
};

// New memory, filled with bytes that read as NaN in every floating-point type.
void* new_buffer(size_t bytes);
// The memory lives on while someone holds it.
void release_buffer(void* handle);
std::shared_ptr<Memory> memory_of(const void* handle);

size_t allocated_bytes();

}  // namespace simulator
