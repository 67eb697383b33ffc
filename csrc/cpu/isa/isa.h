// What the kernels include, at the baseline instruction set: whatever of it is emitted out of line may be kept for all
// of them by the linker. Then the switch to another instruction set, for the functions between BEGIN and END.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "../dispatch.h"

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics, once they are inlined
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#define TMO_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TMO_TARGET_BEGIN(isa) TMO_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define TMO_TARGET_END TMO_PRAGMA(clang attribute pop)
#else
#define TMO_TARGET_BEGIN(isa) TMO_PRAGMA(GCC push_options) TMO_PRAGMA(GCC target(isa))
#define TMO_TARGET_END TMO_PRAGMA(GCC pop_options)
#endif
