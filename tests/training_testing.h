// Whole trainings, small, for the tests of training.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/head_kinds.h"
#include "experiments/runs/open_run.h"
#include "experiments/training/train.h"
#include "tests/catch.h"

namespace headlab::training_testing {
namespace fs = std::filesystem;

inline Experiment experiment_of(const std::string& yaml) {
  Experiment experiment;
  read_config(experiment, parse_config(yaml, "test"));
  return experiment;
}

inline std::string small(const std::string& kind, const std::string& train = "") {
  const bool causal = head_kind(kind).options()->traits().causal;
  return std::string("name: small\n") + "data: {kind: " + (causal ? "induction" : "first_token") +
         ", symbols: 16, context: 16, eval_examples: 8}\n"
         "model: {kind: decoder, layers: 2, d_model: 16, heads: 4, dropout: 0.1, causal: " +
         (causal ? "true" : "false") + ", attention: {kind: " + kind + "}}\n" +
         "train: {steps: 6, batch: 4, accumulate: 2, warmup: 2, eval_every: 2, eval_batches: 1" +
         train +
         "}\n"
         "log: {every: 1, stats_every: 2, stats: all, attention: {every: 3, probes: 2}}\n";
}

inline TrainOutcome run_in(const fs::path& path, const Experiment& experiment,
                           bool resume = false) {
  const auto data = open_data(experiment.data);
  auto model = build_model(experiment, data->shape(), at::kCPU);
  const nlohmann::ordered_json manifest{{"status", "running"}};
  auto directory = resume ? RunDirectory::resume(path, WriterLock(path), manifest)
                          : RunDirectory::create(path, "name: small\n", manifest);
  std::optional<Checkpoint> checkpoint;
  if (resume) checkpoint = load_latest(path);
  auto outcome = train(experiment, model, *data, {at::kCPU}, directory, checkpoint);
  directory.end(outcome.status);
  return outcome;
}

inline void require_same_tensors(const NamedTensors& a, const NamedTensors& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : a) {
    INFO(name);
    REQUIRE(at::equal(tensor, b.at(name)));
  }
}

// metrics.jsonl without what depends on the clock.
inline std::vector<std::string> metrics_of(const fs::path& run) {
  std::vector<std::string> rows;
  for (auto row : read_metrics(run / "metrics.jsonl")) {
    row.values.erase("tokens_per_s");
    std::string text = std::to_string(row.step) + " " + std::to_string(row.tokens);
    for (const auto& [name, value] : row.values) text += " " + name + "=" + shortest(value);
    rows.push_back(text);
  }
  return rows;
}

}  // namespace headlab::training_testing
