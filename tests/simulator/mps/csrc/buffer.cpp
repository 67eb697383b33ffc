#include "buffer.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace simulator {

namespace {

constexpr int kPoison = 0xFF;
constexpr size_t kAlignment = 256;
// Handles are not used twice, so that one that outlives its buffer is found out.
constexpr size_t kHandleSpace = size_t{1} << 44;
constexpr size_t kPage = 4096;

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

class Buffers {
 public:
  void* add(size_t bytes) {
    auto memory = std::make_shared<Memory>(bytes);
    const std::lock_guard lock(mutex_);
    const size_t length = rounded(bytes + 1, kPage);
    TORCH_CHECK(length <= static_cast<size_t>(end_ - next_), "the simulated mps device has no addresses left");
    char* handle = next_;
    next_ += length;
    allocated_ += bytes;
    memories_.emplace(handle, std::move(memory));
    return handle;
  }

  void remove(void* handle) {
    std::shared_ptr<Memory> last;  // freed after the lock
    const std::lock_guard lock(mutex_);
    const auto found = memories_.find(static_cast<char*>(handle));
    last = std::move(found->second);
    allocated_ -= last->size;
    memories_.erase(found);
  }

  std::shared_ptr<Memory> find(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = memories_.find(static_cast<const char*>(handle));
    TORCH_CHECK(found != memories_.end(), "no mps buffer has the address ", handle);
    return found->second;
  }

  size_t allocated() {
    const std::lock_guard lock(mutex_);
    return allocated_;
  }

 private:
  static char* reserve() {
    void* space = mmap(nullptr, kHandleSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(space != MAP_FAILED, "the simulated mps device could not reserve addresses");
    return static_cast<char*>(space);
  }

  std::mutex mutex_;
  std::map<const char*, std::shared_ptr<Memory>> memories_;
  size_t allocated_ = 0;
  char* next_ = reserve();
  char* const end_ = next_ + kHandleSpace;
};

// Never destroyed: tensors may outlive everything else.
Buffers& buffers() {
  static auto& all = *new Buffers;
  return all;
}

char* allocate(size_t bytes) {
  const size_t capacity = rounded(bytes + 1, kAlignment);
  void* memory = std::aligned_alloc(kAlignment, capacity);
  TORCH_CHECK(memory, "the simulated mps device is out of memory for ", bytes, " bytes");
  return static_cast<char*>(std::memset(memory, kPoison, capacity));
}

}  // namespace

Memory::Memory(size_t bytes) : begin(allocate(bytes)), size(bytes) {}
Memory::~Memory() { std::free(begin); }

void* new_buffer(size_t bytes) { return buffers().add(bytes); }
void release_buffer(void* handle) { buffers().remove(handle); }
std::shared_ptr<Memory> memory_of(const void* handle) { return buffers().find(handle); }
size_t allocated_bytes() { return buffers().allocated(); }

}  // namespace simulator
