// What a compiled kernel and the runtime that executes it share, and (Dispatch) what Python fills in.
// No standard library: kernels are compiled without one, and the runtime asks nobody for memory.
#pragma once

namespace msl {

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long;

constexpr u32 kSimdWidth = 32;
constexpr u32 kSlotBytes =
    64;  // the largest value a simd function takes: a vector of four 64-bit numbers and then some
constexpr u32 kMaxBuffers = 31;
constexpr u32 kMaxThreads = 1024;

struct Lane;
struct Simdgroup;

// Executed once for a simdgroup, by the last of the `active` lanes to arrive.
using Collective = void (*)(Simdgroup&, u32 active);

enum class Wait : u32 { simd, matrix, simdgroup_barrier, threadgroup_barrier };

// Where a lane waits. Lanes of one simdgroup that wait at different places have diverged.
struct Site {
  const char* function;
  const char* file;
  u32 line;
};

struct Lane {
  alignas(64) char slot[kSlotBytes];  // the value this lane brings to a simd function
  void* stack_pointer;
  char* stack;
  Simdgroup* simdgroup;
  Collective collective;
  Site site;
  Wait wait;
  u32 memory;  // mem_flags of the barrier that this lane waits at
  u32 index;   // in the simdgroup
  u32 flat;    // in the threadgroup
  u32 position[3];
};

struct Simdgroup {
  alignas(64) char shared[kSimdWidth * kSlotBytes];  // what the last collective made of the slots
  Lane* lanes;
  u32 index, size;
  u32 live, waiting, active;  // masks of lanes
  bool at_barrier;
  u32 ordered[2];  // time of the last simdgroup_barrier that orders device, threadgroup memory
};

struct Group {
  u32 position[3], groups[3], grid[3];
  u32 size[3], full_size[3];  // a group at a ragged edge is smaller than full_size
  u32 threads, simdgroups;
  u32 serial;      // groups are numbered in order of execution, from 1
  u32 ordered[2];  // as in Simdgroup, for threadgroup_barrier
  void* buffers[kMaxBuffers];
  void* dynamic[kMaxBuffers];
};

// The kinds of kernel parameters, named as Metal's attributes.
enum class Parameter : u32 {
  buffer,
  threadgroup,
  thread_position_in_grid,
  thread_position_in_threadgroup,
  thread_index_in_threadgroup,
  thread_index_in_simdgroup,
  thread_index_in_quadgroup,
  simdgroup_index_in_threadgroup,
  quadgroup_index_in_threadgroup,
  threadgroup_position_in_grid,
  threads_per_grid,
  threadgroups_per_grid,
  threads_per_threadgroup,
  dispatch_threads_per_threadgroup,
  threads_per_simdgroup,
  thread_execution_width,
  simdgroups_per_threadgroup,
  dispatch_simdgroups_per_threadgroup,
  quadgroups_per_threadgroup,
};

struct Argument {
  Parameter kind;
  u32 index;
  u32 optional;  // a buffer that a function constant switches on or off
};

enum class Fault : u32 {
  out_of_bounds_read,
  out_of_bounds_write,
  uninitialised_read,
  race,
  misaligned,
  simd_divergence,
  inactive_lane,
  barrier_divergence,
  early_return,
  threadgroup_memory,
};

struct Finding {
  Fault fault;
  u32 legal;  // Metal allows it, but it is seldom meant
  u32 line;   // 0: only `address` says where
  const char* file;
  u64 address;       // of the instruction, relative to the library
  u32 thread[3];     // position in the grid
  u32 region;        // index into Dispatch::regions, or region_count: threadgroup memory
  u64 offset, size;  // bytes
  char text[96];
};

// One buffer's memory. Buffers that overlap share a region.
struct Region {
  char* begin;
  u64 size;
  u64 uninitialised;  // not 0: the kernel must write a byte before it reads it
  u64 reads, read_bytes, writes, written_bytes;
};

// Who touched a byte last, and when; see check.cpp.
struct Shadow {
  u32 writer, write_time, reader, read_time;
};

struct Counts {
  u64 threadgroup_reads, threadgroup_read_bytes, threadgroup_writes, threadgroup_written_bytes;
  u64 simd_operations, matrix_operations, simdgroup_barriers, threadgroup_barriers, atomics, threads;
};

struct Dispatch {
  void* buffers[kMaxBuffers];
  u32 dynamic_bytes[kMaxBuffers];  // [[threadgroup(n)]]
  u32 grid[3], group[3];
  u32 seed;  // 0: threads and groups run in order
  u32 threadgroup_limit;
  char* stacks;  // kMaxThreads * stack_bytes
  u64 stack_bytes;
  char* arena;  // threadgroup memory
  u64 arena_bytes;
  Finding* findings;
  u32 finding_capacity, finding_count;
  Counts counts;
  // Check mode only.
  Region* regions;
  u32 region_count;
  u32 stopped;       // an access outside every region ended the dispatch
  Shadow** shadows;  // a region's, one a byte; the last is the arena's
  u8** touched;      // the same, of flags: 1 initialised, 2 read, 4 written
};

}  // namespace msl

extern "C" {
extern msl::Lane* msl_lane;  // the lane that runs now
extern msl::Group msl_group;
extern msl::Dispatch* msl_dispatch;

void msl_wait(msl::Collective, msl::Wait, msl::u32 memory, const char* function, const char* file, msl::u32 line);
void* msl_threadgroup_variable(const void* key, msl::u64 bytes, const char* file, msl::u32 line);
void msl_inactive_lane(const char* function, const char* file, msl::u32 line);
msl::u64 msl_atomic_load(const volatile void*, msl::u32 bytes, const char* file, msl::u32 line);
// `alone`: not the second half of a read-modify-write.
void msl_atomic_store(volatile void*, msl::u64 bits, msl::u32 bytes, bool alone, const char* file, msl::u32 line);

// Supplied by the compiled kernel.
void msl_kernel();
}
