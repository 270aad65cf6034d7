// Loss and metrics of a model on fixed examples of a split.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/data/source.h"
#include "experiments/models/model.h"

namespace headlab {

struct Evaluation {
  Split split = Split::kValidation;
  // Of Task::metrics() in their order, the first is the loss; behind them Task::summaries(). 0
  // where there is no example.
  std::vector<MetricValue> means = {};
  int64_t tokens = 0;  // scored targets
  int64_t examples = 0;
  int64_t batches = 0;        // measured on the first so many; 0: on all examples of the split
  SplitTokens of_split = {};  // of all examples
  std::optional<double> bleu =
      {};  // of the whole split's translations, where train.bleu_every asks

  bool whole_split() const { return batches == 0 && takes_whole(split, of_split); }
  double loss() const { return means.at(0).value; }
  bool is_finite() const;                         // the loss, where there is one
  double mean(const std::string& name) const;     // std::out_of_range for another task's
  std::optional<double> validation_loss() const;  // none: of another split
};

// What follows from its loss: Task::derived().
std::vector<MetricValue> derived_of(const Evaluation& evaluation, const Task& task);
// All means, the loss first, with ", " between.
std::string means_text(const Evaluation& evaluation);
// How much was scored: "81,920 tokens"; "2,000 examples" where each has one target.
std::string scored_text(int64_t tokens, int64_t examples);
// " in 2,000 examples"; nothing where that is what was scored.
std::string examples_text(const Evaluation& evaluation);
// What they were measured on: "whole split, 111,488 of 111,540 tokens" (the last ones fill no
// window), "first 20 batches, 81,920 tokens", "first 64 of 94 tokens" of a text that was given; and
// {"split", "examples", "tokens", "whole_split"}, with "split_tokens" where the split has tokens.
std::string measured_text(const Evaluation& evaluation);
nlohmann::ordered_json measured_json(const Evaluation& evaluation);
// Whether a number of an evaluation tells of that, and is no result: "tokens", "examples",
// "whole_split".
bool says_what_was_measured(const std::string& name);
// The same but the split, for an array of results.
std::map<std::string, int64_t> measured_attributes(const Evaluation& evaluation);

// The batches of a sample, in order, on `device`.
void for_each_batch(const Sample& sample, const at::Device& device,
                    const std::function<void(const Batch& batch)>& visit);

// In eval mode, without gradients; the model's mode is restored. Where the ranks of a run share it
// (Compute::comm), each takes every N-th batch, and all get what one process would. DataError where
// examples were measured and no target of them is scored.
Evaluation evaluate(Model& model, const Sample& sample, const Compute& compute);
// Of several beginnings of the split, each as if alone, in one pass: in the order of `most`, which
// stand for the sample's own. `goes_on`: asked after every batch (of all ranks: after one of each,
// by all, and their answers are the same), with the examples so far; false: what has not ended is
// given up, and stays without means.
std::vector<Evaluation> evaluate_parts(
    Model& model, const Sample& sample, const std::vector<int64_t>& most, const Compute& compute,
    const std::function<bool(int64_t examples)>& goes_on = nullptr);

// NotFiniteError where the whole model is no measure: its loss, or the weights of a model that has
// none, are not finite.
void require_finite(const Evaluation& whole, const Model& model);

}  // namespace headlab
