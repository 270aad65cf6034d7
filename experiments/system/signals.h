// Signals that ask a run to stop: the step under way is finished and saved first.
#pragma once

namespace headlab {

// While it lives, SIGINT, SIGTERM and SIGUSR1 are noted instead of obeyed. A second one ends the
// process at once; the same signal again within a second counts once, as schedulers deliver twice.
// One that is made while another lives changes nothing: what is noted stays so until the first
// goes.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static int received();  // the signal's number; 0: none
  // 130 for SIGINT, 143 for SIGTERM, 75 (resumable) for SIGUSR1.
  static int exit_code(int signal);
};

}  // namespace headlab
