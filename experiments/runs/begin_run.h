// How a training takes its run directory: makes it, goes on with it, or starts it anew.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "experiments/runs/checkpoint.h"
#include "experiments/runs/run_files.h"

namespace headlab {

// What is asked for with --resume.
struct ResumeFrom {
  bool never = false;                // train anew, whatever is there
  std::filesystem::path named = {};  // a run or a checkpoint in it; empty: the latest of the path
  bool any_device = false;           // also one that was computed on another type of device

  static ResumeFrom parse(const std::string& text);  // "auto", "never", or a path
};

// How the run at `path` ended, when nothing is to be done but to say so; none otherwise. Changes
// nothing. RunError: a process writes it, or something else lies there.
std::optional<RunStatus> already_finished(const std::filesystem::path& path,
                                          const ResumeFrom& from);

struct BegunRun {
  std::optional<RunDirectory> directory = {};  // none: another process has finished it meanwhile
  std::optional<Checkpoint> checkpoint = {};   // to go on from; none: from the start
  std::string warning = {};                    // damaged checkpoints that were passed over
};

// Takes the run at `path` for this process. Its lock is held before anything is looked at, and
// everything is checked before anything is taken away: later checkpoints than the one that is gone
// on from go last. `check`, which may throw, is among it. RunError as in already_finished(), where
// the checkpoint that is named is not there, and when the data are others now.
BegunRun begin_run(const std::filesystem::path& path, const std::string& config_yaml,
                   nlohmann::ordered_json manifest, const std::string& data_json,
                   const ResumeFrom& from, const std::function<void()>& check = {});

}  // namespace headlab
