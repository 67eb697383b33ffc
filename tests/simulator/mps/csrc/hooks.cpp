// What torch.mps and torch.accelerator ask of the device.
#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/CPUAllocator.h>

#include "allocator.h"
#include "buffer.h"
#include "event.h"
#include "generator.h"
#include "queue.h"

namespace simulator {

namespace {

constexpr size_t kMemory = size_t{8} << 30;

struct Hooks final : at::MPSHooksInterface {
  void init() const override {}
  bool hasMPS() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool isOnMacOSorNewer(unsigned, unsigned) const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }

  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::Device getDeviceFromPtr(void*) const override { return {c10::kMPS, 0}; }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return new_generator(); }

  c10::Allocator* getMPSDeviceAllocator() const override { return &allocator(); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return false; }
  void emptyCache() const override {}
  size_t getCurrentAllocatedMemory() const override { return allocated_bytes(); }
  size_t getDriverAllocatedMemory() const override { return allocated_bytes(); }
  size_t getRecommendedMaxMemory() const override { return kMemory; }
  size_t getMaxBufferLength() const override { return kMemory; }
  void setMemoryFraction(double) const override {}

  void deviceSynchronize() const override { synchronize(); }
  void commitStream() const override {}

  uint32_t acquireEvent(bool) const override { return new_event(); }
  void releaseEvent(uint32_t event) const override { release_event(event); }
  void recordEvent(uint32_t event) const override { record_event(event); }
  void waitForEvent(uint32_t) const override {}  // the only stream runs in order
  void synchronizeEvent(uint32_t) const override { synchronize(); }
  bool queryEvent(uint32_t) const override { return idle(); }
  double elapsedTimeOfEvents(uint32_t start, uint32_t end) const override { return milliseconds(start, end); }
};

}  // namespace

}  // namespace simulator

namespace at {
// torch looks for this very name.
using MPSHooks = simulator::Hooks;
C10_REGISTER_CLASS(MPSHooksRegistry, MPSHooks, MPSHooks)
}  // namespace at
