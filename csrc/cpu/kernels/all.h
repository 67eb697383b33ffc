// Every kernel for one instruction set, as one table. Included by csrc/cpu/isa/<isa>.cpp.
#pragma once

#include "gemm.h"

namespace tmo::cpu::TMO_ISA {

const Kernels kernels{};

}  // namespace tmo::cpu::TMO_ISA
