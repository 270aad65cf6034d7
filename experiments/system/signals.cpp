#include "experiments/system/signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "experiments/system/exit_codes.h"

namespace headlab {
namespace {

constexpr std::array<int, 3> kSignals{SIGINT, SIGTERM, SIGUSR1};
// The first signal in the low byte, above it the second in which it came, as one value: two signals
// may be handled by two threads at once.
std::atomic<int64_t> first = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);
std::array<struct sigaction, 3> before;
int alive = 0;

// Only what is safe in a signal handler.
void note(int signal) {
  const int64_t now = time(nullptr);
  int64_t noted = 0;
  if (first.compare_exchange_strong(noted, now << 8 | signal)) return;
  if ((noted & 0xff) != signal || now - (noted >> 8) > 1) _exit(128 + signal);
}

}  // namespace

StopSignals::StopSignals() {
  if (alive++ > 0) return;
  signal(SIGPIPE, SIG_IGN);  // who closes stderr stops the progress, not the run
  first = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (size_t n = 0; n < kSignals.size(); ++n) sigaction(kSignals[n], &action, &before[n]);
}

StopSignals::~StopSignals() {
  if (--alive > 0) return;
  for (size_t n = 0; n < kSignals.size(); ++n) sigaction(kSignals[n], &before[n], nullptr);
}

int StopSignals::received() { return static_cast<int>(first & 0xff); }

int StopSignals::exit_code(int signal) {
  return signal == SIGINT ? kInterrupted : signal == SIGTERM ? kTerminated : kResumable;
}

}  // namespace headlab
