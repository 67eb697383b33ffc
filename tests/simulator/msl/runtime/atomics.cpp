// Atomic operations of a dispatch that one operating system thread executes: plain loads and stores, told to check
// mode.
#include "check.h"

namespace msl {
#if MSL_CHECK
void check_atomic(const volatile void* address, u32 bytes, bool writes, const char* file, u32 line);
#else
static void check_atomic(const volatile void*, u32, bool, const char*, u32) {}
#endif
}  // namespace msl

extern "C" {

msl::u64 msl_atomic_load(const volatile void* address, msl::u32 bytes, const char* file, msl::u32 line) {
  msl_dispatch->counts.atomics++;
  msl::check_atomic(address, bytes, false, file, line);
  switch (bytes) {
    case 1:
      return *static_cast<const volatile msl::u8*>(address);
    case 4:
      return *static_cast<const volatile msl::u32*>(address);
    default:
      return *static_cast<const volatile msl::u64*>(address);
  }
}

void msl_atomic_store(volatile void* address, msl::u64 bits, msl::u32 bytes, bool alone, const char* file,
                      msl::u32 line) {
  msl_dispatch->counts.atomics += alone;
  msl::check_atomic(address, bytes, true, file, line);
  switch (bytes) {
    case 1:
      *static_cast<volatile msl::u8*>(address) = static_cast<msl::u8>(bits);
      break;
    case 4:
      *static_cast<volatile msl::u32*>(address) = static_cast<msl::u32>(bits);
      break;
    default:
      *static_cast<volatile msl::u64*>(address) = bits;
  }
}

}  // extern "C"
