// Check mode. The kernel is compiled with -fsanitize=thread and -fsanitize=alignment, whose callbacks are ours: every
// access to memory is looked up among the bound buffers and the threadgroup variables, compared with what other
// threads did to the same bytes, and counted.
//
// Time is a counter that every barrier advances. Two accesses to a byte by different threads, one of them a write, are
// a race unless a barrier of their threadgroup, or of their simdgroup, that orders this kind of memory lies between.
#include "check.h"

namespace msl {
namespace {

constexpr u8 kInitialised = 1, kRead = 2, kWritten = 4;
constexpr u32 kShared = 1u << 31;  // of a reader: others read in the same interval
constexpr u32 kAtomic = 1u << 30;  // of a writer or reader

struct Space {
  char* begin;
  u64 size;
  u32 number;  // of the region; the threadgroup arena comes after all regions
  bool threadgroup;
};

struct Access {
  char* address;
  u64 size;
  bool writes, atomic;
  const char* file;  // of an atomic operation
  u32 line;
  u64 instruction;  // of any other
};

constexpr u32 kMaxVariables = 256;
Space variables[kMaxVariables];
u32 variable_count;
u32 now;

// The last accesses of each lane, by direction, so that the parts of one vector access count once.
struct Recent {
  char *begin, *end;
};
constexpr u32 kRecent = 4;
Recent recent[kMaxThreads][2][kRecent];
u32 next_recent[kMaxThreads][2];

// A store to what another lane of the simdgroup has just stored to. It is a race unless it stores the same value, as
// shipped kernels do with a value that all lanes share. Only after the store can that be told.
struct {
  bool waits;
  Finding finding;
  char* address;
  u64 size;
  char before[16];
} second_store;

extern "C" const char __ehdr_start[], _end[];  // of this library, by the linker

bool find(const char* address, Space& space) {
  Dispatch& d = *msl_dispatch;
  for (u32 i = 0; i < d.region_count; i++) {
    const Region& r = d.regions[i];
    if (address >= r.begin && address < r.begin + r.size) {
      space = {r.begin, r.size, i, false};
      return true;
    }
  }
  for (u32 i = 0; i < variable_count; i++) {
    const Space& v = variables[i];
    if (address >= v.begin && address < v.begin + v.size) {
      space = v;
      return true;
    }
  }
  return false;
}

u64 offset_in_shadow(const Space& space, const char* address) {
  return static_cast<u64>(address - (space.threadgroup ? msl_dispatch->arena : space.begin));
}

u32 thread_number(const Lane& lane) { return (msl_group.serial % (1u << 19)) * kMaxThreads + lane.flat; }

// Whether what `thread` did at `time` is ordered before what the running lane does now.
bool ordered(u32 thread, u32 time, const Lane& lane, bool threadgroup) {
  thread &= ~(kShared | kAtomic);
  if (thread / kMaxThreads != thread_number(lane) / kMaxThreads) return threadgroup;  // another group
  if (time <= msl_group.ordered[threadgroup]) return true;
  bool same_simdgroup = thread % kMaxThreads / kSimdWidth == lane.flat / kSimdWidth;
  return same_simdgroup && time <= lane.simdgroup->ordered[threadgroup];
}

bool same(const Shadow& a, const Shadow& b) { return __builtin_memcmp(&a, &b, sizeof(Shadow)) == 0; }

enum class Race { none, same_simdgroup, yes };

Race races(const Shadow& s, const Access& a, const Lane& lane, bool threadgroup) {
  u32 me = thread_number(lane);
  auto conflicts = [&](u32 other, u32 time) {
    if (!time || (a.atomic && other & kAtomic)) return false;
    bool own = (other & ~(kShared | kAtomic)) == me && !(other & kShared);
    return !own && !ordered(other, time, lane, threadgroup);
  };
  if (a.writes && conflicts(s.reader, s.read_time)) return Race::yes;
  if (!conflicts(s.writer, s.write_time)) return Race::none;
  return a.writes && (s.writer & ~kAtomic) / kSimdWidth == me / kSimdWidth ? Race::same_simdgroup : Race::yes;
}

void remember(Shadow& s, const Access& a, const Lane& lane, bool threadgroup) {
  u32 me = thread_number(lane) | (a.atomic ? kAtomic : 0);
  if (a.writes) {
    s.writer = me;
    s.write_time = now;
    return;
  }
  bool others = s.read_time && (s.reader & ~(kShared | kAtomic)) != (me & ~kAtomic) &&
                !ordered(s.reader, s.read_time, lane, threadgroup);
  bool still_shared = s.reader & kShared && !ordered(s.reader, s.read_time, lane, threadgroup);
  s.reader = me | (others || still_shared ? kShared : 0);
  s.read_time = now;
}

Finding describe(Fault fault, const Access& a) {
  Finding finding{};
  finding.fault = fault;
  finding.file = a.file;
  finding.line = a.line;
  finding.address = a.instruction ? a.instruction - reinterpret_cast<u64>(__ehdr_start) : 0;
  finding.size = a.size;
  finding.region = ~0u;
  return finding;
}

Finding describe_in(Fault fault, const Access& a, const Space& space, u64 byte) {
  Finding finding = describe(fault, a);
  finding.region = space.number;
  finding.offset = static_cast<u64>(a.address - space.begin) + byte;
  return finding;
}

void report_race(Race race, const Access& a, const Finding& finding, const Lane& lane) {
  if (race == Race::yes || a.size > sizeof(second_store.before)) {
    report(finding, lane);
    return;
  }
  second_store.waits = true;
  second_store.finding = finding;
  second_store.address = a.address;
  second_store.size = a.size;
  __builtin_memcpy(second_store.before, a.address, a.size);
}

// The dispatch ends here: the access itself must not happen.
void stop(const Access& a, const Lane& lane) {
  Finding finding = describe(a.writes ? Fault::out_of_bounds_write : Fault::out_of_bounds_read, a);
  u64 nearest = ~0ul;
  auto consider = [&](const char* begin, u32 number) {
    u64 beyond = static_cast<u64>(a.address >= begin ? a.address - begin : begin - a.address);
    if (beyond >= nearest) return;
    nearest = beyond;
    finding.region = number;
    finding.offset = static_cast<u64>(a.address - begin);
  };
  Dispatch& d = *msl_dispatch;
  for (u32 i = 0; i < d.region_count; i++) consider(d.regions[i].begin, i);
  for (u32 i = 0; i < variable_count; i++) consider(variables[i].begin, d.region_count);
  report(finding, lane);
  abandon();
}

void count(const Access& a, const Space& space, const Lane& lane) {
  Recent* seen = recent[lane.flat][a.writes];
  Recent* part = nullptr;  // of a vector access, which moves at most 16 aligned bytes
  for (u32 i = 0; i < kRecent; i++)
    if (seen[i].end == a.address &&
        reinterpret_cast<u64>(seen[i].begin) / 16 == (reinterpret_cast<u64>(a.address) + a.size - 1) / 16)
      part = &seen[i];
  bool continues = part;
  if (!part) part = &seen[next_recent[lane.flat][a.writes]++ % kRecent];
  *part = {continues ? part->begin : a.address, a.address + a.size};
  u64 bytes = a.size, accesses = continues ? 0 : 1;
  if (space.threadgroup) {
    Counts& c = msl_dispatch->counts;
    (a.writes ? c.threadgroup_written_bytes : c.threadgroup_read_bytes) += bytes;
    (a.writes ? c.threadgroup_writes : c.threadgroup_reads) += accesses;
  } else {
    Region& r = msl_dispatch->regions[space.number];
    (a.writes ? r.written_bytes : r.read_bytes) += bytes;
    (a.writes ? r.writes : r.reads) += accesses;
  }
}

void check(const Access& a) {
  settle();
  Lane* lane = msl_lane;
  if (!lane || (a.address >= lane->stack && a.address < lane->stack + msl_dispatch->stack_bytes)) return;
  if (a.address >= __ehdr_start && a.address < _end) return;  // constants, and the runtime's own
  Space space;
  if (!find(a.address, space) || a.address + a.size > space.begin + space.size) return stop(a, *lane);
  count(a, space, *lane);

  u64 first = offset_in_shadow(space, a.address);
  Shadow* shadow = msl_dispatch->shadows[space.number] + first;
  u8* touched = msl_dispatch->touched[space.number] + first;
  bool must_write = space.threadgroup || msl_dispatch->regions[space.number].uninitialised;
  bool raced = false, unknown = false;
  Shadow before{}, after{};  // of the byte before this one: most accesses find all of their bytes alike
  for (u64 i = 0; i < a.size; i++) {
    if (i && same(shadow[i], before)) {
      shadow[i] = after;
    } else {
      before = shadow[i];
      Race race = races(shadow[i], a, *lane, space.threadgroup);
      if (!raced && (raced = race != Race::none)) report_race(race, a, describe_in(Fault::race, a, space, i), *lane);
      remember(shadow[i], a, *lane, space.threadgroup);
      after = shadow[i];
    }
    if (!a.writes && must_write && !unknown && (unknown = !(touched[i] & kInitialised)))
      report(describe_in(Fault::uninitialised_read, a, space, i), *lane);
    touched[i] |= a.writes ? kInitialised | kWritten : kRead;
  }
}

void check_plain(const volatile void* address, u64 size, bool writes, const void* return_address) {
  check({static_cast<char*>(const_cast<void*>(address)), size, writes, false, nullptr, 0,
         reinterpret_cast<u64>(return_address) - 1});
}

}  // namespace

void begin_group() {
  variable_count = 0;
  second_store.waits = false;
  now++;
  __builtin_memset(recent, 0, sizeof(recent[0]) * msl_group.threads);
}

void settle() {
  if (!second_store.waits) return;
  second_store.waits = false;
  if (__builtin_memcmp(second_store.before, second_store.address, second_store.size))
    report(second_store.finding, *msl_lane);
}

void declare_threadgroup_memory(char* begin, u64 bytes) {
  variables[variable_count++] = {begin, bytes, msl_dispatch->region_count, true};
  u64 first = static_cast<u64>(begin - msl_dispatch->arena);
  u32 number = msl_dispatch->region_count;
  __builtin_memset(msl_dispatch->shadows[number] + first, 0, bytes * sizeof(Shadow));
  __builtin_memset(msl_dispatch->touched[number] + first, 0, bytes);
  __builtin_memset(begin, 0xCB, bytes);  // nobody may count on zeros
}

void order(u32 (&ordered)[2], u32 memory) {
  for (u32 space = 0; space < 2; space++)
    if (memory >> space & 1) ordered[space] = now;
  now++;
}

void check_atomic(const volatile void* address, u32 bytes, bool writes, const char* file, u32 line) {
  check({static_cast<char*>(const_cast<void*>(address)), bytes, writes, true, file, line, 0});
}

}  // namespace msl

#define MSL_CALLER __builtin_return_address(0)
#define MSL_CALLBACKS(N)                                                                \
  void __tsan_read##N(void* p) { msl::check_plain(p, N, false, MSL_CALLER); }           \
  void __tsan_write##N(void* p) { msl::check_plain(p, N, true, MSL_CALLER); }           \
  void __tsan_unaligned_read##N(void* p) { msl::check_plain(p, N, false, MSL_CALLER); } \
  void __tsan_unaligned_write##N(void* p) { msl::check_plain(p, N, true, MSL_CALLER); }

// What -fsanitize=alignment passes: clang's TypeMismatchData.
struct MslMismatch {
  const char* file;
  msl::u32 line, column;
  const void* type;
  unsigned char log_alignment, kind;
};

extern "C" {

MSL_CALLBACKS(1)
MSL_CALLBACKS(2)
MSL_CALLBACKS(4)
MSL_CALLBACKS(8)
MSL_CALLBACKS(16)
void __tsan_init() {}

void* __tsan_memcpy(void* to, const void* from, msl::u64 size) {
  if (size) {
    msl::check_plain(from, size, false, MSL_CALLER);
    msl::check_plain(to, size, true, MSL_CALLER);
  }
  return __builtin_memcpy(to, from, size);
}
void* __tsan_memmove(void* to, const void* from, msl::u64 size) {
  if (size) {
    msl::check_plain(from, size, false, MSL_CALLER);
    msl::check_plain(to, size, true, MSL_CALLER);
  }
  return __builtin_memmove(to, from, size);
}
void* __tsan_memset(void* to, int value, msl::u64 size) {
  if (size) msl::check_plain(to, size, true, MSL_CALLER);
  return __builtin_memset(to, value, size);
}

void __ubsan_handle_type_mismatch_v1(const MslMismatch* where, void*) {
  if (!msl_lane) return;
  msl::Finding finding{};
  finding.fault = msl::Fault::misaligned;
  finding.file = where->file;
  finding.line = where->line;
  finding.region = ~0u;
  msl::Finding* kept = msl::report(finding, *msl_lane);
  if (!kept) return;
  msl::append(kept->text, "the address is not a multiple of ");
  const char* powers[] = {"1", "2", "4", "8", "16", "32", "64"};
  msl::append(kept->text, powers[where->log_alignment < 7 ? where->log_alignment : 6]);
}
}
