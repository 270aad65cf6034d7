// How many cores a training of a sweep takes, and how many trainings there are at once.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "experiments/sweeps/sweep_points.h"

namespace headlab {

struct SweepThreads {
  int64_t of_a_run = 1, jobs = 1;
  bool set = true;  // by the configs or by OMP_NUM_THREADS

  // What a training is to be given: none where its threads are set. Trainings that may use every
  // core would each wait for all others.
  std::map<std::string, std::string> environment() const;
};

// `jobs`: that were asked for; 0: as many as the cores hold.
SweepThreads threads_of(const FrozenSweep& sweep, int64_t jobs);

}  // namespace headlab
