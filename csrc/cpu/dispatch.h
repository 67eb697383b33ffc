// Which build of the kernels runs: one table of functions an instruction set, chosen once a process.
#pragma once

namespace tmo::cpu {

// The work of the ops on one thread, over a range of items; csrc/cpu/<op>.cpp divides the items among threads.
struct Kernels {
};

// Each is defined in isa/<name>.cpp from the same source, csrc/cpu/kernels/.
namespace base {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}

// The widest that this machine and torch's own choice (ATEN_CPU_CAPABILITY) allow.
const Kernels& kernels();

}  // namespace tmo::cpu
