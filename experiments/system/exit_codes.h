// How the program ends.
#pragma once

namespace headlab {

// Exit codes, as README lists them.
enum ExitCode {
  kDone = 0,
  kInternal = 1,
  kCheckFailed = 1,
  kUsage = 2,
  kData = 3,
  kStorage = 4,
  kDiverged = 5,
  kDevice = 6,
  kResumable = 75,
  kInterrupted = 130,
  kTerminated = 143,
};

}  // namespace headlab
