#include "experiments/system/signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>

#include "experiments/system/exit_codes.h"

namespace headlab {
namespace {

constexpr std::array<int, 3> kSignals{SIGINT, SIGTERM, SIGUSR1};
volatile sig_atomic_t first_signal = 0;
volatile time_t noted_at = 0;
std::array<struct sigaction, 3> before;
int alive = 0;

// Only what is safe in a signal handler.
void note(int signal) {
  if (first_signal != 0 && (signal != first_signal || time(nullptr) - noted_at > 1))
    _exit(128 + signal);
  if (first_signal != 0) return;
  first_signal = signal;
  noted_at = time(nullptr);
}

}  // namespace

StopSignals::StopSignals() {
  if (alive++ > 0) return;
  signal(SIGPIPE, SIG_IGN);  // who closes stderr stops the progress, not the run
  first_signal = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (size_t n = 0; n < kSignals.size(); ++n) sigaction(kSignals[n], &action, &before[n]);
}

StopSignals::~StopSignals() {
  if (--alive > 0) return;
  for (size_t n = 0; n < kSignals.size(); ++n) sigaction(kSignals[n], &before[n], nullptr);
}

int StopSignals::received() { return first_signal; }

int StopSignals::exit_code(int signal) {
  return signal == SIGINT ? kInterrupted : signal == SIGTERM ? kTerminated : kResumable;
}

}  // namespace headlab
