// What the scheduler tells check mode. Without MSL_CHECK all of it costs nothing.
#pragma once
#include "report.h"

namespace msl {

// Ends the dispatch from inside a lane; does not return.
void abandon();

#if MSL_CHECK
void begin_group();
// The running lane has completed the write that it was last seen to begin.
void settle();
void declare_threadgroup_memory(char* begin, u64 bytes);
// Memory operations before the barrier are ordered before those after it, in the address spaces that `memory` names.
void order(u32 (&ordered)[2], u32 memory);
#else
inline void begin_group() {}
inline void settle() {}
inline void declare_threadgroup_memory(char*, u64) {}
inline void order(u32 (&)[2], u32) {}
#endif

}  // namespace msl
