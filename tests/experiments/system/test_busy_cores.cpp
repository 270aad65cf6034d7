// Threads that find no core are noticed, and waiting is shortened and lengthened by that.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "experiments/system/busy_cores.h"
#include "tests/catch.h"
#include "tests/thread_names.h"

namespace headlab::testing::test_busy_cores {
namespace {

// Two threads that both want one and the same core, until it is destroyed.
class TwoOnOneCore {
 public:
  TwoOnOneCore() {
    for (int i = 0; i < 2; ++i) {
      threads_.emplace_back([this] {
        cpu_set_t allowed, one;
        sched_getaffinity(0, sizeof allowed, &allowed);
        int core = 0;
        while (!CPU_ISSET(core, &allowed)) ++core;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        sched_setaffinity(0, sizeof one, &one);
        while (!ended_) {
        }
      });
    }
  }
  ~TwoOnOneCore() {
    ended_ = true;
    for (auto& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> ended_ = false;
  std::vector<std::thread> threads_;
};

bool system_tells() { return std::filesystem::exists("/proc/self/schedstat"); }

TEST_CASE("threads that share a core wait for it") {
  if (!system_tells()) return skip("no /proc/self/schedstat here");
  const double before = waited_for_cores();
  const TwoOnOneCore busy;
  while (waited_for_cores() < before + .2) std::this_thread::yield();
  SUCCEED("they have waited for a fifth of a second");
}

TEST_CASE("a team is opened while threads wait for a core, and once") {
  if (!system_tells()) return skip("no /proc/self/schedstat here");
  std::atomic<int> opened = 0;
  const BusyCores watched([&] {
    ++opened;
    opened.notify_one();
  });
  {
    const TwoOnOneCore busy;
    opened.wait(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  CHECK(opened == 1);
}

// Waits until the threads of this process that have this name are so many.
void wait_for_named(const std::string& name, int count) {
  while (std::ranges::count(thread_names(), name) != count) std::this_thread::yield();
}

TEST_CASE("a process has one watching thread, by name, until that is ended, and again") {
  watch_busy_cores();  // no team is known
  CHECK(std::ranges::count(thread_names(), "busy_cores") == 0);
  if (!system_tells()) return skip("no /proc/self/schedstat here");
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY"))
    return skip("the environment says how threads wait");
  watch_busy_cores([] {});
  watch_busy_cores();
  wait_for_named("busy_cores", 1);
  end_busy_cores();
  wait_for_named("busy_cores", 0);  // the kernel lists a thread that was joined a little longer
  end_busy_cores();
  watch_busy_cores();
  wait_for_named("busy_cores", 1);
  end_busy_cores();
  wait_for_named("busy_cores", 0);
  for (const char* chosen : {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}) {
    setenv(chosen, "7", 1);
    watch_busy_cores();
    unsetenv(chosen);
    CHECK(std::ranges::count(thread_names(), "busy_cores") == 0);
  }
}

TEST_CASE("the spin is short from the first busy window until two quiet seconds") {
  ShortSpin spin;
  CHECK_FALSE(spin.after(0));
  CHECK_FALSE(spin.after(.09));
  CHECK(spin.after(.11));
  for (int round = 0; round < 2; ++round) {
    for (int window = 0; window < 19; ++window) CHECK(spin.after(.01));
    CHECK(spin.after(.05));  // not quiet: it counts anew
  }
  for (int window = 0; window < 19; ++window) CHECK(spin.after(.01));
  CHECK_FALSE(spin.after(.01));
  CHECK_FALSE(spin.after(.05));
  CHECK(spin.after(1.5));
}

}  // namespace
}  // namespace headlab::testing::test_busy_cores
