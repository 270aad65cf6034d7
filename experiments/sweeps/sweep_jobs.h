// A sweep as jobs for others to run: array scripts for Slurm, a list of commands for GNU parallel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "experiments/sweeps/sweep_points.h"

namespace headlab {

// Indices of an array job that Slurm takes as it is installed (MaxArraySize 1001).
inline constexpr size_t kMostOfAnArray = 1000;

struct JobOrders {
  std::string program;        // the file of this one
  int64_t at_once = 1;        // jobs
  int64_t threads = 1;        // of a job
  int64_t gpus = 0;           // of a job of Slurm
  std::string time;           // that Slurm gives a job, HH:MM:SS
  bool sets_threads = false;  // the configs do not: the environment is to
};

// Whether Slurm takes it as a limit: HH:MM:SS, with days D-HH:MM:SS.
bool is_time_limit(const std::string& text);

// Writes an array script for every kMostOfAnArray points, and the folder of their output. Returns
// the commands that submit them.
std::vector<std::string> write_slurm_scripts(const FrozenSweep& sweep, const JobOrders& orders);

// Writes a line a point, in the order of points.tsv. Returns the command that runs them, again and
// again.
std::string write_job_list(const FrozenSweep& sweep, const JobOrders& orders);

}  // namespace headlab
