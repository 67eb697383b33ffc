// torch.mps.Event. Its time is when the launches before it have run.
#pragma once

#include <cstdint>

namespace simulator {

uint32_t new_event();
void release_event(uint32_t event);
void record_event(uint32_t event);
double milliseconds(uint32_t start, uint32_t end);

}  // namespace simulator
