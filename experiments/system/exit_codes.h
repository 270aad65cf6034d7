// How the program ends.
#pragma once

#include <utility>

namespace headlab {

// Exit codes, each once with what it means in kExitMeanings.
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
  kHungUp = 129,
  kInterrupted = 130,
  kTerminated = 143,
};

// How a training ends towards the sweep that started it with this variable set; to everybody else
// the first is kStorage and the second kDone.
inline constexpr const char* kStartedBySweep = "HEADLAB_STARTED_BY_SWEEP";
inline constexpr int kRunIsTaken = 76;      // another process was quicker
inline constexpr int kRunWasFinished = 77;  // by the time that it looked

inline constexpr std::pair<ExitCode, const char*> kExitMeanings[] = {
    {kDone, "done"},
    {kInternal, "internal error, or a check that failed"},
    {kUsage, "wrong usage or config"},
    {kData, "wrong or missing data"},
    {kStorage, "a checkpoint, log or output that cannot be read or written"},
    {kDiverged, "diverged: loss or gradient not finite"},
    {kDevice, "no such device, or out of memory or processes"},
    {kResumable, "stopped before its end; the same command goes on"},
    {kHungUp, "hung up (SIGHUP); the same command goes on"},
    {kInterrupted, "interrupted (SIGINT); the same command goes on"},
    {kTerminated, "terminated (SIGTERM); the same command goes on"},
};

}  // namespace headlab
