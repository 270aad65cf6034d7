// A signal that this process sends to itself.
#pragma once

#include <unistd.h>

#include <csignal>
#include <thread>

#include "experiments/system/signals.h"

namespace headlab {

// Waits until one is noted: another thread takes it (see SignalThread). A StopSignals must live.
inline void send_and_wait(int signal) {
  kill(getpid(), signal);
  while (StopSignals::received() == 0) std::this_thread::yield();
}

}  // namespace headlab
