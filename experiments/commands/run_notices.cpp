#include "experiments/commands/run_notices.h"

#include <algorithm>
#include <csignal>

#include "experiments/models/model.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/output.h"
#include "experiments/system/signals.h"
#include "experiments/training/train.h"
#include "experiments/training/update.h"

namespace headlab {
namespace {

// In words; with what `@` meant in it, `run`, which will be another one by then.
std::string the_same_command(const std::string& run) {
  const auto& words = command_line();
  const bool newest = std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word.starts_with('@') || word.starts_with("init=@") || word.starts_with("--init=@");
  });
  return newest ? "the same command with " + run : "the same command";
}

}  // namespace

void say_unreached_rate(const Experiment& experiment, const DataSource& data) {
  const auto& train = experiment.train;
  const int64_t epoch = train.epoch_size(data);
  const auto schedule = schedule_of(train, experiment.model.as<ModelOptions>().d_model, epoch);
  if (const auto what = unreached_rate(schedule, train.total_steps(epoch)); !what.empty())
    tell("{}", what);
}

void say_same_on_other_data(const std::filesystem::path& path, const Experiment& experiment,
                            const nlohmann::ordered_json& data) {
  if (const auto other = same_on_other_data(path, experiment, data); !other.empty())
    tell("{}", other);
}

void note_signals() {
  // Never let go, as in main(): all that is to be saved is, when the process ends.
  [[maybe_unused]] static const auto* const signals = new StopSignals;
}

void say_what_goes_on(const RunStatus& status, const std::string& run) {
  const auto how = status.reason == signal_text(SIGINT) ? "interrupted" : "stopped";
  const auto goes_on =
      status.reason == kMeasurementCutShort ? "measures the end of the training" : "goes on";
  tell("{} at step {}; {} {}", how, status.step, the_same_command(run), goes_on);
}

}  // namespace headlab
