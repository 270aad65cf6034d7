#include "experiments/runs/initial_weights.h"

#include <fmt/format.h>

#include "core/errors.h"
#include "experiments/runs/known_runs.h"
#include "experiments/runs/open_run.h"
#include "experiments/runs/run_data.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/same_run.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

// RunError, that names the key.
template <class Look>
auto of_init(Look look) {
  try {
    return look();
  } catch (const RunError& error) {
    throw RunError(std::string("init: ") + error.what());
  }
}

// Whether a run, or one that it was made from, lies at `path`.
bool descends_from(const fs::path& path, const fs::path& run,
                   const nlohmann::ordered_json& manifest) {
  if (run == path) return true;
  if (!manifest.is_object()) return false;
  const auto parent = manifest.find("parent");
  return parent != manifest.end() && parent->is_object() &&
         descends_from(path, parent->value("run", ""), *parent);
}

// "" where every token that both know means the same.
std::string tokens_that_differ(const DataDescription& then, const DataDescription& now) {
  for (size_t id = 0; id < then.token_texts.size() && id < now.token_texts.size(); ++id)
    if (then.token_texts[id] != now.token_texts[id])
      return fmt::format("token {} is {} there and {} in these data", id,
                         nlohmann::json(then.token_texts[id]).dump(),
                         nlohmann::json(now.token_texts[id]).dump());
  return "";
}

}  // namespace

void resolve_init(Experiment& experiment) {
  auto& init = experiment.init;
  if (init.written.empty()) return;
  const fs::path words = init.written.starts_with('@') ? fs::path(init.written) : init.resolved;
  const auto taken = of_init([&] { return take_run(words); });
  if (taken == words) return;
  init.resolved = fs::weakly_canonical(taken);
  init.written = init.resolved.string();
}

std::optional<InitialWeights> InitialWeights::of(const Experiment& experiment,
                                                 const fs::path& path) {
  if (experiment.init.written.empty()) return std::nullopt;
  return of_init([&] {
    InitialWeights initial;
    const auto located = locate_run(experiment.init.resolved);
    initial.run_ = located.run;
    if (descends_from(fs::weakly_canonical(path), located.run, read_manifest(located.run)))
      throw ConfigError(
          fmt::format("init: {} is this run itself, or was made from it", experiment.init.written));
    initial.checkpoint_ = load_located_weights(located);
    initial.file_ = weights_file(located.run, initial.checkpoint_.step);
    return std::optional(std::move(initial));
  });
}

std::string InitialWeights::text() const {
  return fmt::format("{} at step {}", run_.string(), checkpoint_.step);
}

nlohmann::ordered_json InitialWeights::parent_json() const {
  return headlab::parent_json(run_, checkpoint_.step, read_manifest(run_));
}

void InitialWeights::put_into(Model& model, const DataDescription& data) const {
  if (const auto kept = read_data_text(run_))
    if (const auto what = tokens_that_differ(*kept, data); !what.empty())
      throw ConfigError(fmt::format(
          "init: {} knows other tokens: {}; train on data with the same ones", text(), what));
  try {
    load_model(model, checkpoint_.model);
  } catch (const RunError& error) {
    throw ConfigError(fmt::format("init: {}: {}", text(), error.what()));
  }
}

}  // namespace headlab
