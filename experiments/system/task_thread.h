// One thread that runs tasks in order, behind a bounded queue.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace headlab {

// What a task throws ends the thread: tasks not yet run are dropped, and every later call of the
// owner throws it too.
class TaskThread {
 public:
  using Clock = std::chrono::steady_clock;
  struct Limits {
    size_t tasks = 64;         // waiting; more and the owner waits
    size_t bytes = 256 << 20;  // what they hold; a larger task alone is let in
  };
  // All run in the thread.
  struct Hooks {
    std::function<std::optional<Clock::time_point>()> deadline;  // when late() is due, if it is
    std::function<void()> late;
    std::function<void()> end;  // before the thread ends, after an error too; must not throw
  };

  // `name`: of the thread, as ps -L and gdb show it; at most 15 characters
  TaskThread(const char* name, Limits limits, Hooks hooks);
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;
  ~TaskThread();  // runs what waits

  void push(std::function<void()> task, size_t bytes = 0);  // waits while the queue is full
  void call(std::function<void()> task);                    // and waits until it has been run

 private:
  struct Task {
    std::function<void()> run;
    size_t bytes;
  };
  void loop(const char* name);
  bool step();  // false: no more to do
  bool full(size_t bytes) const;

  Limits limits_;
  Hooks hooks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> queue_;
  size_t queued_bytes_ = 0;
  uint64_t pushed_ = 0, done_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace headlab
