// The shader libraries that were built into this package. tools/embed_metal.py writes the definitions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tmo::mps {

struct Shader {
  const char* library;  // the name of the .metal file
  const char* source;   // with its headers in place
  const uint8_t* metallib;
  size_t metallib_size;  // 0 where no Metal compiler was at hand: the source is compiled on first use
};

extern const Shader kShaders[];
extern const size_t kShaderCount;

}  // namespace tmo::mps
