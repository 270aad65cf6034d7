// Signals that are noted instead of obeyed.
#include <csignal>

#include "experiments/system/exit_codes.h"
#include "experiments/system/signals.h"
#include "tests/catch.h"

namespace headlab {

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

}  // namespace headlab
