// A thread of a kernel is a fiber: a stack of its own and a switch that saves what the calling convention preserves.
// A simd function costs one switch a lane; operating system threads would cost a hundred times that.
#pragma once
#include "abi.h"

extern "C" void msl_switch(void** save_stack_pointer, void* stack_pointer);

#if defined(__x86_64__)
asm(R"(
.text
.globl msl_switch
.hidden msl_switch
.type msl_switch,@function
msl_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
#error "The simulator's fiber switch is written for x86-64 only."
#endif

namespace msl {

// The stack pointer of a fiber that will begin at `entry`. Stacks lie at multiples of a power of two: without an
// offset of its own, the same variable of every lane would fall into one cache set.
inline void* new_fiber(char* stack, u64 bytes, u32 number, void (*entry)()) {
  u64 top = reinterpret_cast<u64>(stack) + bytes - (number * 704u & 0x3fc0u);
  auto* frame = reinterpret_cast<void**>(top & ~u64{63});
  *--frame = nullptr;  // the return address of entry, which does not return
  *--frame = reinterpret_cast<void*>(entry);
  for (int saved = 0; saved < 6; saved++) *--frame = nullptr;
  return frame;
}

}  // namespace msl
