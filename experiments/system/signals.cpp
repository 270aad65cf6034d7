#include "experiments/system/signals.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>

#include "experiments/system/exit_codes.h"

namespace headlab {
namespace {

// SIGUSR1 is the last that is handled: who waits for that waits for all.
constexpr std::array<int, 5> kSignals{SIGHUP, SIGXCPU, SIGINT, SIGTERM, SIGUSR1};
// The first signal in the low byte, above it the second in which it came, as one value: a program
// that embeds this may have threads of its own that are interrupted.
std::atomic<int64_t> first = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);
std::array<struct sigaction, kSignals.size()> before;
int alive = 0;

struct SignalTaker {
  int users = 0;
  pid_t process = 0;  // a fork leaves the thread behind
  pthread_t thread{};
  sem_t ended{};
  sigset_t mask{};  // of the thread that began it, before
} taker;

sigset_t handled_signals() {
  sigset_t all;
  sigemptyset(&all);
  for (const int signal : kSignals) sigaddset(&all, signal);
  return all;
}

// Nobody sends these to have the process end at once.
bool only_asks(int signal) { return signal == SIGHUP || signal == SIGXCPU; }

// Only what is safe in a signal handler.
void note(int signal) {
  const int64_t now = time(nullptr);
  int64_t noted = 0;
  if (first.compare_exchange_strong(noted, now << 8 | signal)) return;
  if (only_asks(signal)) return;
  if ((noted & 0xff) != signal || now - (noted >> 8) > 1) _exit(128 + signal);
}

void* take_signals(void*) {
  pthread_setname_np(pthread_self(), "signals");
  const auto handled = handled_signals();
  pthread_sigmask(SIG_UNBLOCK, &handled, nullptr);
  while (sem_wait(&taker.ended) != 0) {  // a handler has run
  }
  return nullptr;
}

bool is_ignored(int signal) {
  struct sigaction now {};
  return sigaction(signal, nullptr, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
         now.sa_handler == SIG_IGN;
}

constexpr std::array<int, 3> kEnds{SIGHUP, SIGINT, SIGTERM};
std::string unfinished;  // changed only while no handler reads it

void remove_unfinished(int ending) {
  unlink(unfinished.c_str());
  signal(ending, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, ending);
  raise(ending);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
}

// From one handler to another, where it is that one.
void exchange_handlers(void (*from)(int), void (*to)(int)) {
  for (const int number : kEnds) {
    struct sigaction now {};
    sigaction(number, nullptr, &now);
    if (!(now.sa_flags & SA_SIGINFO) && now.sa_handler == from) signal(number, to);
  }
}

}  // namespace

StoppedError::StoppedError(int signal)
    : std::runtime_error("signal " + std::to_string(signal) + " before anything was written"),
      code_(StopSignals::exit_code(signal)) {}

UnfinishedFile::UnfinishedFile(const std::filesystem::path& path) {
  unfinished = std::filesystem::absolute(path).string();
  exchange_handlers(SIG_DFL, remove_unfinished);
}

UnfinishedFile::~UnfinishedFile() { exchange_handlers(remove_unfinished, SIG_DFL); }

SignalThread::SignalThread() {
  if (taker.process == getpid() && taker.users++ > 0) return;
  const bool forked = taker.process != 0 && taker.process != getpid() && taker.users > 0;
  const auto handled = handled_signals();
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, &handled, &mask);
  if (!forked) taker.mask = mask;  // else what was so before the parent's
  sem_init(&taker.ended, 0, 0);
  if (const int error = pthread_create(&taker.thread, nullptr, take_signals, nullptr); error != 0) {
    pthread_sigmask(SIG_SETMASK, &taker.mask, nullptr);
    throw std::system_error(error, std::generic_category(), "no thread can be started");
  }
  taker.process = getpid();
  taker.users = 1;
}

SignalThread::~SignalThread() {
  if (taker.process != getpid() || --taker.users > 0) return;
  sem_post(&taker.ended);
  pthread_join(taker.thread, nullptr);
  sem_destroy(&taker.ended);
  taker.process = 0;
  pthread_sigmask(SIG_SETMASK, &taker.mask, nullptr);
}

StopSignals::StopSignals() {
  if (alive++ > 0) return;
  signal(SIGPIPE, SIG_IGN);  // who closes stderr stops the progress, not the run
  first = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_mask = handled_signals();
  action.sa_flags = SA_RESTART;
  for (size_t n = 0; n < kSignals.size(); ++n) {
    if (only_asks(kSignals[n]) && is_ignored(kSignals[n]))
      sigaction(kSignals[n], nullptr, &before[n]);
    else
      sigaction(kSignals[n], &action, &before[n]);
  }
}

StopSignals::~StopSignals() {
  if (--alive > 0) return;
  for (size_t n = 0; n < kSignals.size(); ++n) sigaction(kSignals[n], &before[n], nullptr);
}

int StopSignals::received() { return static_cast<int>(first & 0xff); }

void StopSignals::end_if_received() {
  if (const int signal = received(); signal != 0) throw StoppedError(signal);
}

int StopSignals::exit_code(int signal) {
  switch (signal) {
    case SIGINT:
      return kInterrupted;
    case SIGTERM:
      return kTerminated;
    case SIGHUP:
      return kHungUp;
    default:
      return kResumable;
  }
}

void forget_stop_signals() {
  for (const int number : kSignals)
    if (!is_ignored(number)) signal(number, SIG_DFL);
  const auto handled = handled_signals();
  pthread_sigmask(SIG_UNBLOCK, &handled, nullptr);
}

}  // namespace headlab
