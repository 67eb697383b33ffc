#include "isa.h"

#if defined(__x86_64__)

#define TMO_ISA avx2
#define TMO_LANES 8
#define TMO_F16C 1

TMO_TARGET_BEGIN("avx2,fma,f16c")
#include "../kernels/all.h"
TMO_TARGET_END

#endif
