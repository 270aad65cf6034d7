#include "experiments/system/task_thread.h"

#include <pthread.h>

#include <utility>

namespace headlab {

TaskThread::TaskThread(const char* name, Limits limits, Hooks hooks)
    : limits_(limits), hooks_(std::move(hooks)), thread_([this, name] { loop(name); }) {}

TaskThread::~TaskThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool TaskThread::full(size_t bytes) const {
  return queue_.size() >= limits_.tasks ||
         (!queue_.empty() && queued_bytes_ + bytes > limits_.bytes);
}

void TaskThread::push(std::function<void()> task, size_t bytes) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || !full(bytes); });
    if (error_) std::rethrow_exception(error_);
    queue_.push_back({std::move(task), bytes});
    queued_bytes_ += bytes;
    ++pushed_;
  }
  changed_.notify_all();
}

void TaskThread::call(std::function<void()> task) {
  push(std::move(task));
  std::unique_lock lock(mutex_);
  const uint64_t ticket = pushed_;
  changed_.wait(lock, [&] { return error_ || done_ >= ticket; });
  if (error_) std::rethrow_exception(error_);
}

bool TaskThread::step() {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return !queue_.empty() || stop_; };
  const auto due = hooks_.deadline();
  if (due) {
    changed_.wait_until(lock, *due, ready);
    if (Clock::now() >= *due) {
      lock.unlock();
      hooks_.late();
      return true;
    }
  } else {
    changed_.wait(lock, ready);
  }
  if (queue_.empty()) return !stop_;
  const Task task = std::move(queue_.front());
  queue_.pop_front();
  queued_bytes_ -= task.bytes;
  lock.unlock();
  changed_.notify_all();
  task.run();
  lock.lock();
  ++done_;
  lock.unlock();
  changed_.notify_all();
  return true;
}

void TaskThread::loop(const char* name) {
  pthread_setname_np(pthread_self(), name);
  try {
    while (step()) {
    }
  } catch (...) {  // handed to the owner
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    queue_.clear();
    queued_bytes_ = 0;
  }
  hooks_.end();
  changed_.notify_all();
}

}  // namespace headlab
