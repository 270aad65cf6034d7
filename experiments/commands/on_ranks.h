// A command whose work several processes share (torchrun, srun, a loop in a shell).
#pragma once

#include <functional>

#include "experiments/ranks/comm.h"

namespace headlab {

// Of the option --comm-timeout.
inline constexpr int kCommTimeout = 300;
inline constexpr const char* kCommTimeoutHelp =
    "seconds that one of several processes waits for the others";

// What this process was started as, and its connection to the others; alone() where it is the only
// one.
struct Ranks {
  Launch launch;
  Comm& comm;
};

// Meets the other processes, does the work, and tells them of its error.
int on_ranks(const Launch& launch, const CommSettings& settings,
             const std::function<int(const Ranks&)>& work);

}  // namespace headlab
