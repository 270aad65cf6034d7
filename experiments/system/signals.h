// Signals that ask a run to stop: the step under way is finished and saved first.
#pragma once

#include <filesystem>
#include <stdexcept>

namespace headlab {

// A signal has asked to stop before there was anything to be saved.
class StoppedError : public std::runtime_error {
 public:
  explicit StoppedError(int signal);
  int code() const { return code_; }  // to exit with

 private:
  int code_;
};

// While one lives, a thread of its own takes the signals that are handled here, and no other thread
// does: neither the one that made it nor those begun afterwards. A handler needs room on the stack
// of the thread that it interrupts, and oneDNN's products with AVX-512 keep numbers below the end
// of theirs. One that is made while another lives changes nothing. std::system_error: no thread.
class SignalThread {
 public:
  SignalThread();
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;
};

// While it lives, SIGINT, SIGTERM, SIGUSR1, SIGHUP and SIGXCPU are noted instead of obeyed. SIGHUP
// and SIGXCPU that were ignored before (nohup) stay so. A second signal ends the process at once;
// the same one again within a second counts once, as schedulers deliver twice, and SIGHUP and
// SIGXCPU end nothing as second ones: systemd sends SIGHUP behind SIGTERM, the kernel repeats
// SIGXCPU every second. One that is made while another lives changes nothing: what is noted stays
// so until the first goes.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static int received();  // the signal's number; 0: none
  // Of work before there is anything to be saved. StoppedError where one was received.
  static void end_if_received();
  // 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP, 75 (resumable) for SIGUSR1 and SIGXCPU.
  static int exit_code(int signal);

 private:
  SignalThread thread_;
};

// While it lives, the end of the process by SIGINT, SIGTERM or SIGHUP takes a file along that is
// not whole yet. Nothing where these signals are noted, or ignored. One at a time.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(const std::filesystem::path& path);
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;
};

// In a process that was forked, where no thread takes them: signals that are noted here have their
// default action again, those that are ignored apart, and are let in. Safe between fork and exec.
void forget_stop_signals();

}  // namespace headlab
