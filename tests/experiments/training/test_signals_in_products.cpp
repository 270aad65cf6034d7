// Signals that are noted while oneDNN multiplies: its code for AVX-512 keeps numbers below the end
// of the stack, where the kernel writes what a handler is called with.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "core/attention/layers.h"
#include "experiments/system/signals.h"
#include "tests/catch.h"

namespace headlab::test_signals_in_products {
namespace {

bool multiplies_with_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

// A process that sends SIGUSR1 to this one, as fast as it can, until it is told to end.
class Sender {
 public:
  Sender() {
    const pid_t to = ::getpid();
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0)
      while (::kill(to, SIGUSR1) == 0 && ::getppid() == to) {
      }
    if (pid_ == 0) ::_exit(0);
  }
  ~Sender() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

// 0: every product among signals was as it is without them.
int products_among_signals() {
  using Clock = std::chrono::steady_clock;
  constexpr auto kLong =
      std::chrono::milliseconds(700);  // the same signal counts once for a second
  at::manual_seed(1);
  const auto a = at::randn({48, 96}), b = at::randn({80, 96});
  const auto right = product(a, b);
  const StopSignals signals;
  const Sender sender;
  for (const auto end = Clock::now() + kLong; Clock::now() < end;)
    if (!at::equal(product(a, b), right)) return 1;
  return StopSignals::received() == SIGUSR1 ? 0 : 2;
}

}  // namespace

TEST_CASE("signals that are noted change no product of oneDNN") {
  if (!multiplies_with_avx512()) return testing::skip("this processor has no AVX-512");
  use_onednn(true);
  const pid_t child = ::fork();
  if (child == 0) {
    at::set_num_threads(1);  // a fork leaves OpenMP's threads behind
    ::_exit(products_among_signals());
  }
  use_onednn({});
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  INFO((WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "no signal"));
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace headlab::test_signals_in_products
