// Signals that are noted instead of obeyed.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

#include "experiments/system/exit_codes.h"
#include "experiments/system/signals.h"
#include "tests/catch.h"

namespace headlab {
namespace {

// How a process ends that does this with its signals noted: 0 where it comes back.
int exit_code_of(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    StopSignals signals;
    body();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("a signal that one StopSignals noted is not forgotten by another inside it") {
  StopSignals outer;
  {
    StopSignals inner;
    CHECK(StopSignals::received() == 0);
    raise(SIGUSR1);
    CHECK(StopSignals::received() == SIGUSR1);
  }
  CHECK(StopSignals::received() == SIGUSR1);
  {
    StopSignals inner;
    CHECK(StopSignals::received() == SIGUSR1);
  }
}

TEST_CASE("signals are noted anew by the next StopSignals, and still after one inside is gone") {
  { StopSignals before; }
  StopSignals outer;
  CHECK(StopSignals::received() == 0);
  { StopSignals inner; }
  raise(SIGTERM);  // would end the process
  CHECK(StopSignals::received() == SIGTERM);
  CHECK(StopSignals::exit_code(SIGTERM) == kTerminated);
}

TEST_CASE("a second signal of another kind ends the process at once, the same one twice does not") {
  CHECK(exit_code_of([] {
          raise(SIGTERM);
          raise(SIGINT);
        }) == 128 + SIGINT);
  CHECK(exit_code_of([] {
          raise(SIGTERM);
          raise(SIGTERM);
        }) == 0);
}

TEST_CASE("of two signals that two threads handle at once one is the second") {
  for (int n = 0; n < 200; ++n) {
    const int code = exit_code_of([] {
      std::atomic<int> there = 0;
      const auto both = [&](int signal) {
        for (++there; there < 2;) continue;
        raise(signal);
      };
      std::jthread other(both, SIGTERM);
      both(SIGINT);
    });
    CHECK((code == 128 + SIGINT || code == 128 + SIGTERM));
  }
}

}  // namespace headlab
