#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace simulator {

c10::DeviceAllocator& allocator();

}  // namespace simulator
