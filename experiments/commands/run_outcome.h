// What `headlab run` prints of a run that has ended.
#pragma once

#include <filesystem>
#include <string>

#include "experiments/runs/run_files.h"

namespace headlab {

// Its path, state, metrics and, where it is not empty, what has changed in the code since: as text,
// or one JSON object. -> kDone
int print_outcome(const std::filesystem::path& path, const RunStatus& status, bool json,
                  const std::string& code = "");

}  // namespace headlab
