// Where torch gets mps memory from.
#include "allocator.h"

#include <cstring>

#include "buffer.h"
#include "queue.h"

namespace simulator {

namespace {

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* handle = bytes ? new_buffer(bytes) : nullptr;
    return {handle, handle, &release_buffer, c10::Device(c10::kMPS, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_buffer; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    synchronize();
    std::memcpy(memory_of(to)->begin, memory_of(from)->begin, bytes);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};

struct Registration {
  Registration() { c10::SetAllocator(c10::kMPS, &allocator()); }
} registration;

}  // namespace

c10::DeviceAllocator& allocator() {
  static auto& only = *new Allocator;
  return only;
}

}  // namespace simulator
