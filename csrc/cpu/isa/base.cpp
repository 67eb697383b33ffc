// The kernels for what every machine of this architecture has: SSE2 on x86-64, NEON on arm64.
#include "isa.h"

#define TMO_ISA base
#define TMO_LANES 4

#include "../kernels/all.h"
