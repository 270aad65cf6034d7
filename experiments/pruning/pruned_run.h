// Prunes a run from beginning to end, and keeps what is left as a run of its own.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "experiments/pruning/prune.h"

namespace headlab {

struct PrunedRun {
  nlohmann::ordered_json report;
  std::string text;  // the same for people
  int exit_code = 0;
  std::optional<RunStatus> stopped = {};  // the same command goes on
};

// `run` was opened from `source`, and is pruned. `out`: where the run goes, masked or sliced;
// empty: nowhere. Of a run without data nothing is measured: ConfigError where `settings` need
// some. Where tuning ends before its time the report says how, null where nothing is written yet,
// and the exit code is that of the training; the next call with the same goes on, and one after the
// end has the same report. RunError as of write_run() and Tuning.
PrunedRun prune_run(const std::string& source, OpenedRun& run, const PruneSettings& settings,
                    int64_t bench_batch, bool slice, const std::filesystem::path& out,
                    const Compute& compute);

}  // namespace headlab
