// What the tests of checkpoints share.
#pragma once

#include <filesystem>

#include "experiments/runs/checkpoint.h"
#include "experiments/runs/run_files.h"

namespace headlab::testing {

// A checkpoint directory of a run, or a link to one.
inline Checkpoint load_checkpoint(const std::filesystem::path& directory) {
  return load_located({.run = directory.parent_path().parent_path(), .checkpoint = directory});
}

}  // namespace headlab::testing
