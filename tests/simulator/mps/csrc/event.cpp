#include "event.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <map>
#include <mutex>
#include <optional>

#include "queue.h"

namespace simulator {

namespace {

using Clock = std::chrono::steady_clock;

std::mutex mutex;
std::map<uint32_t, std::optional<Clock::time_point>> times;
uint32_t last = 0;

Clock::time_point time_of(uint32_t event) {
  const auto& time = times.at(event);
  TORCH_CHECK(time, "an event must be recorded before its time is asked for");
  return *time;
}

}  // namespace

uint32_t new_event() {
  const std::lock_guard lock(mutex);
  times[++last];
  return last;
}

void release_event(uint32_t event) {
  const std::lock_guard lock(mutex);
  times.erase(event);
}

void record_event(uint32_t event) {
  synchronize();
  const std::lock_guard lock(mutex);
  times.at(event) = Clock::now();
}

double milliseconds(uint32_t start, uint32_t end) {
  const std::lock_guard lock(mutex);
  return std::chrono::duration<double, std::milli>(time_of(end) - time_of(start)).count();
}

}  // namespace simulator
