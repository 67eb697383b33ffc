// The device's one stream, which runs what it is given in order.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "queue.h"

namespace simulator {

namespace {

using c10::Device;
using c10::Stream;

const Device kDevice(c10::kMPS, 0);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::kMPS;

  c10::DeviceType type() const override { return static_type; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  Device exchangeDevice(Device) const override { return kDevice; }
  Device getDevice() const override { return kDevice; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}

  Stream getStream(Device) const override { return Stream(Stream::DEFAULT, kDevice); }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream getNewStream(Device device, int) const override { return getStream(device); }
  Stream exchangeStream(Stream) const override { return getStream(kDevice); }
  bool queryStream(const Stream&) const override { return idle(); }
  void synchronizeStream(const Stream&) const override { synchronize(); }
  void synchronizeDevice(c10::DeviceIndex) const override { synchronize(); }

  // With one stream there is nothing that an event could order.
  void record(void**, const Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return idle(); }
  void synchronizeEvent(void*) const override { synchronize(); }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
};

C10_REGISTER_GUARD_IMPL(MPS, Guard)

}  // namespace

}  // namespace simulator
