#include "experiments/commands/run_outcome.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "experiments/commands/command.h"
#include "experiments/inference/evaluate.h"
#include "experiments/inference/translated_text.h"
#include "experiments/models/model.h"
#include "experiments/runs/known_runs.h"
#include "experiments/runs/open_run.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/exit_codes.h"
#include "experiments/system/output.h"
#include "experiments/system/program_name.h"
#include "experiments/system/signals.h"
#include "experiments/text/shell_word.h"
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

// The task's metrics on a split, the loss first, with what they were measured on; "" where nothing
// was evaluated.
std::string evaluation_text(const RunStatus& status, Split split) {
  const auto of = metric_name(split, "");
  auto metrics = status.metrics;
  const auto take = [&](const char* name) {
    const auto taken = metrics.extract(of + name);
    return taken.empty() ? std::optional<double>() : std::optional(taken.mapped());
  };
  const auto loss = take("loss"), tokens = take("tokens"), whole = take("whole_split"),
             step = take("step"), examples = take("examples");
  if (!loss) return "";
  auto text = fmt::format(", {} loss {:.4f} nat", split_name(split), *loss);
  for (auto metric = metrics.lower_bound(of);
       metric != metrics.end() && metric->first.starts_with(of); ++metric)
    text += fmt::format(", {} {:.4f}", metric->first.substr(of.size()), metric->second);
  if (tokens)
    text += " over " +
            scored_text(static_cast<int64_t>(*tokens), static_cast<int64_t>(examples.value_or(0)));
  if (whole) text += *whole != 0 ? ", the whole split" : ", the first of the split";
  if (step && static_cast<int64_t>(*step) != status.step)
    text += fmt::format(", at step {:.0f}", *step);
  return text;
}

}  // namespace

void say_unreached_rate(const Experiment& experiment, const DataSource& data) {
  const auto& train = experiment.train;
  const int64_t epoch = train.epoch_size(data);
  const auto schedule = schedule_of(train, experiment.model.as<ModelOptions>().d_model, epoch);
  if (const auto what = unreached_rate(schedule, train.total_steps(epoch)); !what.empty())
    tell("{}", what);
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

int print_outcome(const std::filesystem::path& path, const RunStatus& status, bool json,
                  const std::string& code) {
  nlohmann::ordered_json object{{"run", path.string()},
                                {"status", run_state_name(status.state)},
                                {"reason", status.reason},
                                {"step", status.step}};
  for (const auto& [name, value] : status.metrics) object[name] = metric_json(value);
  if (!code.empty()) object["code"] = code;
  auto text = fmt::format("{}\n{} at step {}{}", path.string(), run_state_name(status.state),
                          status.step, status.reason.empty() ? "" : ": " + status.reason);
  text += evaluation_text(status, Split::kValidation);
  if (const auto test = evaluation_text(status, Split::kTest); !test.empty())
    text += '\n' + test.substr(2);  // on a line of its own
  if (!code.empty()) text += "\ncode: " + code;
  return print({.object = object, .text = text + "\n"}, json);
}

int print_finished(const std::filesystem::path& path, const RunStatus& status, bool json) {
  tell("this run is finished; '--resume never' trains it anew");
  const int code = print_outcome(path, status, json, code_since(path));
  return code == kDone && std::getenv(kStartedBySweep) ? kRunWasFinished : code;
}

std::optional<int> code_of_early_stop() {
  const int signal = StopSignals::received();
  if (signal == 0) return std::nullopt;
  tell("{} before anything was written", signal_text(signal));
  return StopSignals::exit_code(signal);
}

void say_what_begins(const std::string& config, const Experiment& experiment, Model& model,
                     const DataSource& data, const at::Device& device,
                     const std::filesystem::path& path) {
  tell("{}: {} heads, {} data, {}, {} threads, {} parameters", config,
       fmt::join(kinds_of_heads(model), "+"), experiment.data.kind(), device.str(),
       at::get_num_threads(), parameter_count(model));
  tell("{}", path.string());
  say_unreached_rate(experiment, data);
}

void say_what_comes_next(const std::filesystem::path& path, const Experiment& experiment,
                         const RunStatus& status, const Model& model,
                         const DataDescription& description) {
  if (status.state == RunState::kStopped)
    say_what_goes_on(status, "init=" + shell_word(experiment.init.written));
  if (status.state != RunState::kFinished) return;
  const auto run = shell_word(shown_path(path)), program = program_name();
  tell("next: {} {} -o report.html", script_name("report"), run);
  const bool text = description.tokenizer && model.writes(), pairs = translates(description.shape);
  const char* look = !text ? "analyze" : pairs ? "eval" : "generate";
  tell("      {} {} {}{}", program, look, run, text && pairs ? " --beam 1" : "");
  tell("      {} ablate {}", program, run);
}

}  // namespace headlab
