// Tags of the element types that a kernel chooses between at run time. Read by host and shader.
#ifndef TMO_MPS_DTYPE_H
#define TMO_MPS_DTYPE_H

#ifndef __METAL_VERSION__
#include <cstdint>
#define TMO_CONSTANT
#else
#define TMO_CONSTANT constant
#endif

static TMO_CONSTANT constexpr uint32_t kFloat32 = 0;
static TMO_CONSTANT constexpr uint32_t kFloat16 = 1;
static TMO_CONSTANT constexpr uint32_t kBFloat16 = 2;
static TMO_CONSTANT constexpr uint32_t kBool = 3;

#undef TMO_CONSTANT

#endif
