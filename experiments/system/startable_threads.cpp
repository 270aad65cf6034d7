#include "experiments/system/startable_threads.h"

#include <fmt/format.h>
#include <pthread.h>

#include <cerrno>
#include <mutex>
#include <system_error>
#include <vector>

namespace headlab {
namespace {

void* wait_for_all(void* all_started) {
  const std::lock_guard lock(*static_cast<std::mutex*>(all_started));
  return nullptr;
}

}  // namespace

bool can_start_threads(int count) {
  std::vector<pthread_t> threads;
  int error = 0;
  std::mutex all_started;
  all_started.lock();
  for (int i = 0; i < count && error == 0; ++i) {
    pthread_t thread{};
    error = pthread_create(&thread, nullptr, wait_for_all, &all_started);
    if (error == 0) threads.push_back(thread);
  }
  all_started.unlock();
  for (const auto thread : threads) pthread_join(thread, nullptr);
  return error == 0;
}

void require_startable_threads(int count) {
  if (!can_start_threads(count))
    throw std::system_error(EAGAIN, std::generic_category(),
                            fmt::format("{} threads cannot be started", count));
}

}  // namespace headlab
