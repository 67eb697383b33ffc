// Tags of the element types that a kernel chooses between at run time. Read by host and shader.
#ifndef TMO_MPS_DTYPE_H
#define TMO_MPS_DTYPE_H

#ifndef __METAL_VERSION__
#include <cstdint>
#endif

// Enumerators, since a shader that does not use all of them would be warned of constants.
enum DtypeTag : uint32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kBool = 3 };

#endif
