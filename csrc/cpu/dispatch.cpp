#include "dispatch.h"

#include <ATen/Version.h>

#include <string>

namespace tmo::cpu {
namespace {

const Kernels& choose() {
#if defined(__x86_64__)
  const std::string capability = at::get_cpu_capability();
  if (capability == "AVX512") return avx512::kernels;
  if (capability == "AVX2") return avx2::kernels;
#endif
  return base::kernels;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace tmo::cpu
