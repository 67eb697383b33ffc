// Executes a dispatch: threadgroups one after another, the simdgroups of a group in turns between barriers, the lanes
// of a simdgroup in turns between simd functions. One operating system thread does it all, so that a run is repeatable
// and an atomic operation is an ordinary one.
#include "check.h"
#include "fiber.h"

extern "C" {
msl::Lane* msl_lane;
msl::Group msl_group;
msl::Dispatch* msl_dispatch;
}

namespace msl {
namespace {

constexpr u32 kMaxVariables = 256;

Lane lanes[kMaxThreads];
Simdgroup simdgroups[kMaxThreads / kSimdWidth];
void* scheduler;  // its stack pointer while a lane runs
u64 random_state;

struct Variable {
  const void* key;
  char* address;
} variables[kMaxVariables];
u32 variable_count;
u64 arena_used;      // with the gaps between variables
u64 declared_bytes;  // as Metal counts them

u32 random_below(u32 bound) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return static_cast<u32>((random_state >> 32) % bound);
}

u32 lowest(u32 mask) { return static_cast<u32>(__builtin_ctz(mask)); }
u32 all_lanes(u32 size) { return size == kSimdWidth ? ~0u : (1u << size) - 1; }

// A lane of the simdgroup that can run, preferably the next in order.
Lane* runnable(Simdgroup& s, u32 after) {
  u32 mask = s.live & ~s.waiting;
  if (!mask) return nullptr;
  u32 later = after >= 31 ? 0 : mask & (~0u << (after + 1));
  return &s.lanes[lowest(later ? later : mask)];
}

bool same_site(const Lane& a, const Lane& b) {
  return a.site.line == b.site.line && a.collective == b.collective && a.wait == b.wait && a.site.file == b.site.file;
}

// Whose collective is executed next when the lanes of a simdgroup wait at different places. A branch or a loop that
// some lanes have left is behind them in the source, so the earliest line goes first; barriers go last.
bool goes_before(const Lane& a, const Lane& b) {
  bool a_barrier = a.wait == Wait::threadgroup_barrier, b_barrier = b.wait == Wait::threadgroup_barrier;
  return a_barrier != b_barrier ? b_barrier : a.site.line < b.site.line;
}

void append_site(Finding* finding, const char* words, const Lane& lane) {
  if (!finding) return;
  append(finding->text, words);
  append(finding->text, lane.site.function);
  append(finding->text, " at line ");
  char digits[12];
  int end = sizeof(digits);
  digits[--end] = 0;
  for (u32 line = lane.site.line; end == sizeof(digits) - 1 || line; line /= 10) digits[--end] = '0' + line % 10;
  append(finding->text, digits + end);
}

void report_divergence(Simdgroup& s, const Lane& chosen, u32 active) {
  Fault fault = chosen.wait == Wait::simdgroup_barrier ? Fault::barrier_divergence : Fault::simd_divergence;
  u32 elsewhere = s.live & ~active;
  u32 absent = all_lanes(s.size) & ~active;
  const Lane& other = s.lanes[lowest(elsewhere ? elsewhere : absent)];
  // Simd functions work on the lanes that are there; a barrier or a matrix needs all.
  Finding* kept = report(fault, chosen.site, other, chosen.wait == Wait::simd);
  if (elsewhere)
    append_site(kept, " without the lanes at ", other);
  else if (kept)
    append(kept->text, " without lanes that returned");
}

void arrive_at_barrier(Simdgroup& s, const Lane& first) {
  s.at_barrier = true;
  for (u32 rest = s.live; rest; rest &= rest - 1) {
    const Lane& lane = s.lanes[lowest(rest)];
    if (!same_site(lane, first))
      append_site(report(Fault::barrier_divergence, first.site, lane), " while a lane waits at ", lane);
  }
}

// Every live lane of the simdgroup waits.
void release(Simdgroup& s) {
  Lane* first = &s.lanes[lowest(s.live)];
  for (u32 rest = s.live; rest; rest &= rest - 1) {
    Lane& lane = s.lanes[lowest(rest)];
    if (goes_before(lane, *first)) first = &lane;
  }
  if (first->wait == Wait::threadgroup_barrier) return arrive_at_barrier(s, *first);

  u32 active = 0;
  for (u32 rest = s.live; rest; rest &= rest - 1)
    if (same_site(s.lanes[lowest(rest)], *first)) active |= rest & -rest;
  if (active != all_lanes(s.size)) report_divergence(s, *first, active);

  Counts& counts = msl_dispatch->counts;
  if (first->wait == Wait::simdgroup_barrier) {
    counts.simdgroup_barriers++;
    order(s.ordered, first->memory);
  } else {
    (first->wait == Wait::matrix ? counts.matrix_operations : counts.simd_operations)++;
    s.active = active;
    first->collective(s, active);
  }
  s.waiting &= ~active;
}

// Leaves the running lane; control returns here when it is its turn again.
void yield(Lane& lane) {
  Lane* next = runnable(*lane.simdgroup, lane.index);
  if (next == &lane) return;
  msl_lane = next;
  msl_switch(&lane.stack_pointer, next ? next->stack_pointer : scheduler);
}

void run_lane() {
  msl_kernel();
  settle();
  Lane& lane = *msl_lane;
  Simdgroup& s = *lane.simdgroup;
  s.live &= ~(1u << lane.index);
  if (s.live && s.live == s.waiting) release(s);
  yield(lane);
}

void place_lane(u32 flat) {
  Lane& lane = lanes[flat];
  lane.simdgroup = &simdgroups[flat / kSimdWidth];
  lane.index = flat % kSimdWidth;
  lane.flat = flat;
  const u32* size = msl_group.size;
  lane.position[0] = flat % size[0];
  lane.position[1] = flat / size[0] % size[1];
  lane.position[2] = flat / size[0] / size[1];
  lane.stack = msl_dispatch->stacks + flat * msl_dispatch->stack_bytes;
  lane.stack_pointer = new_fiber(lane.stack, msl_dispatch->stack_bytes, flat, run_lane);
}

void place_simdgroup(u32 index) {
  Simdgroup& s = simdgroups[index];
  s.lanes = &lanes[index * kSimdWidth];
  s.index = index;
  u32 rest = msl_group.threads - index * kSimdWidth;
  s.size = rest < kSimdWidth ? rest : kSimdWidth;
  s.live = all_lanes(s.size);
  s.waiting = 0;
  s.at_barrier = false;
  s.ordered[0] = s.ordered[1] = 0;
}

// Runs the simdgroup until all of its lanes wait at a threadgroup barrier or have returned.
void run_simdgroup(Simdgroup& s) {
  while (s.live && !s.at_barrier && !msl_dispatch->stopped) {
    msl_lane = runnable(s, msl_dispatch->seed ? random_below(kSimdWidth) : 31);
    msl_switch(&scheduler, msl_lane->stack_pointer);
    msl_lane = nullptr;
  }
}

void check_barrier(const Lane& first, const Simdgroup& s) {
  if (s.live != all_lanes(s.size)) {
    Finding* kept = report(Fault::early_return, first.site, s.lanes[lowest(all_lanes(s.size) & ~s.live)]);
    if (kept) append(kept->text, " is not reached by threads that returned");
  }
  if (!s.live) return;
  const Lane& lane = s.lanes[lowest(s.live)];
  if (!same_site(lane, first))
    append_site(report(Fault::barrier_divergence, first.site, lane), " while a simdgroup waits at ", lane);
}

// Every simdgroup is at a barrier or done. False when the group is done.
bool pass_barrier() {
  const Lane* first = nullptr;
  for (u32 i = 0; i < msl_group.simdgroups && !first; i++)
    if (simdgroups[i].live) first = &simdgroups[i].lanes[lowest(simdgroups[i].live)];
  if (!first) return false;
  for (u32 i = 0; i < msl_group.simdgroups; i++) {
    Simdgroup& s = simdgroups[i];
    check_barrier(*first, s);
    s.at_barrier = false;
    s.waiting = 0;
  }
  msl_dispatch->counts.threadgroup_barriers++;
  order(msl_group.ordered, first->memory);
  return true;
}

void place_group(u32 number) {
  Group& g = msl_group;
  g.position[0] = number % g.groups[0];
  g.position[1] = number / g.groups[0] % g.groups[1];
  g.position[2] = number / g.groups[0] / g.groups[1];
  g.threads = 1;
  for (int i = 0; i < 3; i++) {
    u32 rest = g.grid[i] - g.position[i] * g.full_size[i];
    g.size[i] = rest < g.full_size[i] ? rest : g.full_size[i];
    g.threads *= g.size[i];
  }
  g.simdgroups = (g.threads + kSimdWidth - 1) / kSimdWidth;
  g.serial++;
  g.ordered[0] = g.ordered[1] = 0;
  msl_dispatch->counts.threads += g.threads;
}

void declare_dynamic_memory() {
  variable_count = 0;
  arena_used = declared_bytes = 0;
  for (u32 i = 0; i < kMaxBuffers; i++) {
    u32 bytes = msl_dispatch->dynamic_bytes[i];
    void*& address = msl_group.dynamic[i];
    address = bytes ? msl_threadgroup_variable(&address, bytes, nullptr, 0) : nullptr;
  }
}

void run_group(u32 number) {
  place_group(number);
  begin_group();
  for (u32 i = 0; i < msl_group.simdgroups; i++) place_simdgroup(i);
  for (u32 i = 0; i < msl_group.threads; i++) place_lane(i);
  declare_dynamic_memory();
  do {
    u32 count = msl_group.simdgroups, offset = msl_dispatch->seed ? random_below(count) : 0;
    for (u32 i = 0; i < count; i++) run_simdgroup(simdgroups[(i + offset) % count]);
  } while (!msl_dispatch->stopped && pass_barrier());
}

}  // namespace

void abandon() {
  msl_dispatch->stopped = 1;
  msl_switch(&msl_lane->stack_pointer, scheduler);
}

}  // namespace msl

extern "C" {

void msl_wait(msl::Collective collective, msl::Wait wait, msl::u32 memory, const char* function, const char* file,
              msl::u32 line) {
  using namespace msl;
  settle();
  Lane& lane = *msl_lane;
  Simdgroup& s = *lane.simdgroup;
  lane.collective = collective;
  lane.wait = wait;
  lane.memory = memory;
  lane.site = {function, file, line};
  s.waiting |= 1u << lane.index;
  if (s.waiting == s.live) release(s);
  if (s.waiting >> lane.index & 1) yield(lane);
}

void msl_inactive_lane(const char* function, const char* file, msl::u32 line) {
  msl::Finding* kept = msl::report(msl::Fault::inactive_lane, {function, file, line}, *msl_lane);
  if (kept) msl::append(kept->text, " reads a lane that does not take part");
}

void* msl_threadgroup_variable(const void* key, msl::u64 bytes, const char* file, msl::u32 line) {
  using namespace msl;
  for (u32 i = 0; i < variable_count; i++)
    if (variables[i].key == key) return variables[i].address;
  // Metal places variables next to each other; the gap makes an index beyond the end visible.
  u64 rounded = (bytes + 15) & ~u64{15};
  char* address = msl_dispatch->arena + arena_used;
  arena_used += rounded + (MSL_CHECK ? 4096 : 0);
  declared_bytes += rounded;
  if (declared_bytes > msl_dispatch->threadgroup_limit)
    report(Fault::threadgroup_memory, {"more threadgroup memory than the device has", file, line}, lanes[0]);
  if (variable_count == kMaxVariables || arena_used > msl_dispatch->arena_bytes) abandon();
  variables[variable_count++] = {key, address};
  declare_threadgroup_memory(address, bytes);
  return address;
}

// The only function that Python calls.
__attribute__((visibility("default"))) void msl_run(msl::Dispatch* dispatch) {
  using namespace msl;
  msl_dispatch = dispatch;
  Group& g = msl_group;
  g.serial = 0;
  random_state = dispatch->seed * 0x9E3779B97F4A7C15ul | 1;
  for (u32 i = 0; i < kMaxBuffers; i++) g.buffers[i] = dispatch->buffers[i];
  u32 total = 1;
  for (int i = 0; i < 3; i++) {
    g.grid[i] = dispatch->grid[i];
    g.full_size[i] = dispatch->group[i];
    g.groups[i] = (dispatch->grid[i] + dispatch->group[i] - 1) / dispatch->group[i];
    total *= g.groups[i];
  }
  u32 offset = dispatch->seed ? random_below(total) : 0;
  for (u32 i = 0; i < total && !dispatch->stopped; i++) run_group((i + offset) % total);
  msl_lane = nullptr;
}

}  // extern "C"
