// Signals that are noted instead of obeyed.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "experiments/system/exit_codes.h"
#include "experiments/system/signals.h"
#include "tests/catch.h"
#include "tests/scratch.h"
#include "tests/sent_signal.h"

namespace headlab {
namespace {

// To this process, of which one thread takes it: by and by.
void send(int signal) { REQUIRE(kill(getpid(), signal) == 0); }
// Until one that has been sent is taken.
void wait_until_taken(int signal) {
  sigset_t waiting;
  do sigpending(&waiting);
  while (sigismember(&waiting, signal));
}

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
    send_and_wait(SIGUSR1);
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
  send_and_wait(SIGTERM);  // would end the process
  CHECK(StopSignals::received() == SIGTERM);
  CHECK(StopSignals::exit_code(SIGTERM) == kTerminated);
}

TEST_CASE("a second signal of another kind ends the process at once, the same one twice does not") {
  CHECK(exit_code_of([] {
          send_and_wait(SIGTERM);
          send(SIGINT);
          for (;;) pause();
        }) == 128 + SIGINT);
  CHECK(exit_code_of([] {
          send_and_wait(SIGTERM);
          send(SIGTERM);
          wait_until_taken(SIGTERM);
        }) == 0);
}

TEST_CASE("of two signals that two threads send at once one is the second") {
  for (int n = 0; n < 200; ++n) {
    const int code = exit_code_of([] {
      std::atomic<int> there = 0;
      const auto both = [&](int signal) {
        for (++there; there < 2;) continue;
        send(signal);
      };
      std::jthread other(both, SIGTERM);
      both(SIGINT);
      for (;;) pause();
    });
    CHECK((code == 128 + SIGINT || code == 128 + SIGTERM));
  }
}

TEST_CASE("a hang-up and the end of CPU time are noted, and end nothing as second signals") {
  CHECK(exit_code_of([] {
          send_and_wait(SIGTERM);
          for (const int signal : {SIGHUP, SIGXCPU, SIGHUP}) {
            send(signal);
            wait_until_taken(signal);
          }
          if (StopSignals::received() != SIGTERM) _exit(1);
        }) == 0);
  for (const int signal : {SIGHUP, SIGXCPU}) {
    const StopSignals signals;
    send_and_wait(signal);
    CHECK(StopSignals::received() == signal);
    CHECK(StopSignals::exit_code(signal) == (signal == SIGHUP ? kHungUp : kResumable));
  }
}

TEST_CASE("a hang-up that was ignored before stays ignored, as nohup wants it") {
  signal(SIGHUP, SIG_IGN);
  CHECK(exit_code_of([] {
          send(SIGHUP);
          send_and_wait(SIGUSR1);
          _exit(StopSignals::received() == SIGUSR1 ? 0 : 1);
        }) == 0);
  signal(SIGHUP, SIG_DFL);
}

// Of the calling thread.
bool blocks(int signal) {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return sigismember(&mask, signal) == 1;
}

TEST_CASE("one thread takes signals: no other is interrupted, and a child's wait for nothing") {
  const auto all = {SIGHUP, SIGXCPU, SIGINT, SIGTERM, SIGUSR1};
  {
    const StopSignals signals;
    bool here = true, there = true;
    for (const int signal : all) here = here && blocks(signal);
    std::jthread([&] {
      for (const int signal : all) there = there && blocks(signal);
    }).join();
    CHECK(here);
    CHECK(there);
    const pid_t child = fork();
    if (child == 0) {
      forget_stop_signals();
      raise(SIGUSR1);
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGUSR1);
    CHECK(StopSignals::received() == 0);
  }
  for (const int signal : all) CHECK(!blocks(signal));
}

TEST_CASE(
    "a file that is not whole goes with the process, unless signals are noted or it is whole") {
  const Scratch folder;
  const auto path = folder / "unfinished";
  // How a process ends that has the file unfinished when the signal comes.
  const auto end_of = [&](int signal, bool notes, bool whole) {
    write_bytes(path, "a half");
    const pid_t child = fork();
    if (child == 0) {
      forget_stop_signals();  // Catch2 handles them
      const SignalThread thread;
      std::optional<StopSignals> signals;
      if (notes) signals.emplace();
      std::optional<UnfinishedFile> file(path);
      if (whole) file.reset();
      send(signal);
      if (!notes)
        for (;;) pause();  // the signal ends it
      wait_until_taken(signal);
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  };
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    CHECK(end_of(signal, false, false) == -signal);
    CHECK_FALSE(std::filesystem::exists(path));
    CHECK(end_of(signal, false, true) == -signal);
    CHECK(std::filesystem::exists(path));
    CHECK(end_of(signal, true, false) == 0);
    CHECK(std::filesystem::exists(path));
  }
}

}  // namespace headlab
