#include "experiments/system/startable_threads.h"

#include <fmt/format.h>

#include <cerrno>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace headlab {

bool can_start_threads(int count) {
  std::mutex all_started;
  std::vector<std::jthread> threads;
  const std::lock_guard starting(all_started);  // let go before they are waited for
  try {
    while (std::ssize(threads) < count)
      threads.emplace_back([&] { const std::lock_guard wait(all_started); });
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void require_startable_threads(int count) {
  if (!can_start_threads(count))
    throw std::system_error(EAGAIN, std::generic_category(),
                            fmt::format("{} threads cannot be started", count));
}

}  // namespace headlab
