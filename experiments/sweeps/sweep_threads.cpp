#include "experiments/sweeps/sweep_threads.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace headlab {
namespace {

int64_t threads_of_environment() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return text == nullptr ? 0 : std::max<int64_t>(std::strtoll(text, nullptr, 10), 0);
}

}  // namespace

std::map<std::string, std::string> SweepThreads::environment() const {
  if (set) return {};
  return {{"OMP_NUM_THREADS", std::to_string(of_a_run)}};
}

SweepThreads threads_of(const FrozenSweep& sweep, int64_t jobs) {
  const auto cores = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  const int64_t given = threads_of_environment();
  SweepThreads threads{.of_a_run = 0, .jobs = jobs, .set = true};
  for (const auto& point : sweep.points) {
    const auto own = point.experiment.train.threads.value_or(given);
    threads.of_a_run = std::max(threads.of_a_run, own);
    threads.set = threads.set && own > 0;
  }
  if (threads.of_a_run == 0)
    threads.of_a_run = jobs > 0 ? std::max<int64_t>(cores / jobs, 1) : cores;
  if (jobs == 0) threads.jobs = std::max<int64_t>(cores / threads.of_a_run, 1);
  return threads;
}

}  // namespace headlab
