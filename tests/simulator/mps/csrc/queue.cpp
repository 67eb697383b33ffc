#include "queue.h"

#include <Python.h>

#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>

#include <deque>
#include <mutex>
#include <optional>

#include "backend.h"

namespace simulator {

namespace {

std::mutex waiting_mutex;
std::deque<Launch> waiting;  // guarded by the above

std::mutex running_mutex;  // one launch runs at a time
thread_local bool runs_here = false;

// Of the thread that loaded this library: no dispatch mode, no transform. A launch runs Python, inside whatever
// operation it was that needed its result.
const at::ThreadLocalState plain_state;

// While it lives, this thread does not hold Python's lock.
class PythonUnlocked {
 public:
  PythonUnlocked() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~PythonUnlocked() {
    if (state_) PyEval_RestoreThread(state_);
  }
  PythonUnlocked(const PythonUnlocked&) = delete;
  PythonUnlocked& operator=(const PythonUnlocked&) = delete;

 private:
  PyThreadState* state_;
};

std::optional<Launch> next() {
  const std::lock_guard lock(waiting_mutex);
  if (waiting.empty()) return std::nullopt;
  Launch launch = std::move(waiting.front());
  waiting.pop_front();
  return launch;
}

void drop_all() {
  std::deque<Launch> dropped;  // freed after the lock
  const std::lock_guard lock(waiting_mutex);
  dropped.swap(waiting);
}

void run_all() {
  const at::ThreadLocalStateGuard state(plain_state);
  runs_here = true;
  try {
    while (const auto launch = next()) backend().run(*launch);
  } catch (...) {
    runs_here = false;
    drop_all();
    throw;
  }
  runs_here = false;
}

}  // namespace

void enqueue(Launch launch) {
  const std::lock_guard lock(waiting_mutex);
  waiting.push_back(std::move(launch));
}

void synchronize() {
  TORCH_CHECK(!runs_here, "the simulated mps device was asked to wait for itself");
  // The thread that runs needs Python's lock, so nobody may hold it while waiting.
  const PythonUnlocked unlocked;
  const std::lock_guard lock(running_mutex);
  run_all();
}

bool idle() {
  const std::unique_lock running(running_mutex, std::try_to_lock);
  const std::lock_guard lock(waiting_mutex);
  return running.owns_lock() && waiting.empty();
}

}  // namespace simulator
