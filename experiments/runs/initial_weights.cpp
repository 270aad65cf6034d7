#include "experiments/runs/initial_weights.h"

#include <fmt/format.h>

#include "core/errors.h"
#include "experiments/models/finite_weights.h"
#include "experiments/runs/known_runs.h"
#include "experiments/runs/open_run.h"
#include "experiments/runs/run_data.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_manifest.h"
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

using Texts = std::vector<std::string>;

std::string first_difference(const char* what, const Texts& then, const Texts& now) {
  for (size_t id = 0; id < then.size() && id < now.size(); ++id)
    if (then[id] != now[id])
      return fmt::format("{} {} is {} there and {} in these data", what, id,
                         nlohmann::json(then[id]).dump(), nlohmann::json(now[id]).dump());
  return "";
}

// "" where every token that both know means the same.
std::string tokens_that_differ(const DataDescription& then, const DataDescription& now) {
  const auto source = [](const DataDescription& data) {
    return data.source_tokenizer ? data.source_tokenizer->token_texts() : Texts{};
  };
  const auto target = first_difference("token", then.token_texts, now.token_texts);
  return target.empty() ? first_difference("token of the source", source(then), source(now))
                        : target;
}

// Learned positions of a longer context: the first of them.
NamedTensors with_fewer_places(NamedTensors weights, int64_t context) {
  const auto found = weights.find("embed.position.weight");
  if (found != weights.end() && found->second.size(0) > context)
    found->second = found->second.narrow(0, 0, context);
  return weights;
}

// A text is in the tokens of the run that the weights are of, where the config names no others.
void take_tokenizer(Experiment& experiment) {
  auto options = experiment.data.write();
  const auto* tokenizer = options.find("tokenizer");
  if (experiment.data.kind() != "text" || (tokenizer && !tokenizer->text.empty())) return;
  options.set("tokenizer", write_text(locate_run(experiment.init.resolved).run.string()));
  Problems problems;
  experiment.data.read(options, "data", problems);
  problems.raise();
}

}  // namespace

void resolve_init(Experiment& experiment) {
  auto& init = experiment.init;
  if (init.written.empty()) return;
  const fs::path words = init.written.starts_with('@') ? fs::path(init.written) : init.resolved;
  const auto taken = of_init([&] { return take_run(words); });
  if (taken != words) {
    init.resolved = fs::weakly_canonical(taken);
    init.written = init.resolved.string();
  }
  take_tokenizer(experiment);
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
    load_model(model, with_fewer_places(checkpoint_.model, model.context()));
  } catch (const RunError& error) {
    throw ConfigError(fmt::format("init: {}: {}", text(), error.what()));
  }
  warn_if_not_finite("init: " + text(), checkpoint_.model);
}

}  // namespace headlab
