#include "isa.h"

#if defined(__x86_64__)

#define TMO_ISA avx512
#define TMO_LANES 16
#define TMO_AVX512 1

TMO_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#include "../kernels/all.h"
TMO_TARGET_END

#endif
