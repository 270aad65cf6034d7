#include "experiments/inference/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/models/finite_weights.h"
#include "experiments/runs/checkpoint.h"
#include "experiments/text/with_commas.h"

namespace headlab {

double Evaluation::mean(const std::string& name) const {
  const auto found = std::ranges::find(means, name, &MetricValue::name);
  if (found == means.end()) throw std::out_of_range("the task has no metric '" + name + "'");
  return found->value;
}

std::optional<double> Evaluation::validation_loss() const {
  return split == Split::kValidation ? std::optional(loss()) : std::nullopt;
}

std::vector<MetricValue> derived_of(const Evaluation& evaluation, const Task& task) {
  std::vector<MetricValue> values;
  for (const auto& metric : task.derived())
    values.push_back({metric, metric.of_loss(evaluation.loss())});
  return values;
}

bool Evaluation::is_finite() const { return means.empty() || std::isfinite(loss()); }

void require_finite(const Evaluation& whole, const Model& model) {
  if (!whole.is_finite())
    throw NotFiniteError("the " + whole.means.front().name +
                         " of the whole model is not finite; there is nothing to compare with");
  if (whole.means.empty() && !not_finite(module_tensors(model)).empty())
    throw NotFiniteError("weights that are not finite leave nothing to compare with");
}

std::string means_text(const Evaluation& evaluation) {
  std::vector<std::string> texts;
  for (const auto& mean : evaluation.means) texts.push_back(to_text(mean));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string scored_text(int64_t tokens, int64_t examples) {
  return with_commas(tokens) + (tokens == examples ? " examples" : " tokens");
}

std::string examples_text(const Evaluation& evaluation) {
  if (evaluation.tokens == evaluation.examples) return "";
  return fmt::format(" in {} examples", with_commas(evaluation.examples));
}

std::string measured_text(const Evaluation& evaluation) {
  const auto scored = scored_text(evaluation.tokens, evaluation.examples);
  if (evaluation.batches == 0) {
    const auto& [used, all] = evaluation.of_split;
    if (used == all) return "whole split, " + scored;
    return fmt::format("{}{} of {} tokens{}", evaluation.whole_split() ? "whole split, " : "first ",
                       with_commas(used), with_commas(all),
                       used == evaluation.tokens
                           ? ""
                           : fmt::format(", {} scored", with_commas(evaluation.tokens)));
  }
  if (evaluation.batches == 1) return "first batch, " + scored;
  return fmt::format("first {} batches, {}", evaluation.batches, scored);
}

nlohmann::ordered_json measured_json(const Evaluation& evaluation) {
  nlohmann::ordered_json json{{"split", split_name(evaluation.split)},
                              {"examples", evaluation.examples},
                              {"tokens", evaluation.tokens},
                              {"whole_split", evaluation.whole_split()}};
  if (evaluation.of_split.all > 0) json["split_tokens"] = evaluation.of_split.all;
  return json;
}

bool says_what_was_measured(const std::string& name) {
  static const auto names = measured_attributes({});
  return names.contains(name);
}

std::map<std::string, int64_t> measured_attributes(const Evaluation& evaluation) {
  return {{"examples", evaluation.examples},
          {"tokens", evaluation.tokens},
          {"whole_split", evaluation.whole_split()}};
}

void for_each_batch(const Sample& sample, const at::Device& device,
                    const std::function<void(const Batch& batch)>& visit) {
  const int64_t examples = sample.examples();
  for (int64_t first = 0; first < examples; first += sample.batch) {
    const int64_t count = std::min(sample.batch, examples - first);
    visit(sample.data->eval_batch(sample.split, first, count).to(device));
  }
}

std::vector<Evaluation> evaluate_parts(Model& model, const Sample& sample,
                                       const std::vector<int64_t>& most, const Compute& compute,
                                       const std::function<bool(int64_t examples)>& goes_on) {
  const auto& data = *sample.data;
  const auto split = sample.split;
  torch::InferenceMode inference;
  const bool was_training = model.is_training();
  model.eval();
  const int64_t all = data.examples(split);
  std::vector<int64_t> ends;  // examples of each part
  for (auto part = sample; const int64_t batches : most) {
    part.most = batches;
    ends.push_back(part.examples());
  }
  const int64_t end = *std::ranges::max_element(ends);
  const Task& task = data.task();
  const auto counts = at::TensorOptions(at::kDouble).device(compute.device);
  auto sums = at::zeros({std::ssize(task.metrics())}, counts), scored = at::zeros({}, counts);
  Tensor summed;  // Task::counts()
  std::vector<Evaluation> parts(most.size());
  int64_t examples = 0;
  const auto end_parts = [&] {
    for (size_t n = 0; n < parts.size(); ++n) {
      if (ends[n] != examples) continue;
      auto& part = parts[n];
      part.split = split;
      part.examples = examples;
      part.tokens = static_cast<int64_t>(scored.item<double>());
      part.batches = examples < all ? most[n] : 0;
      part.of_split = data.tokens(split);
      if (part.tokens == 0 && examples > 0 && !task.metrics().empty())
        throw DataError(
            fmt::format("split {}: none of the targets of its {} examples is scored, "
                        "so there is nothing to measure; measure on more of it",
                        split_name(split), examples));
      const auto means = (sums / scored.clamp_min(1)).cpu();
      for (const auto& metric : task.metrics()) {
        const auto mean = means[std::ssize(part.means)].item<double>();
        part.means.push_back({metric, std::isnan(mean) ? std::abs(mean) : mean});  // never "-nan"
      }
      const auto summaries = summed.defined() ? task.summarised(summed.cpu())
                                              : std::vector<double>(task.summaries().size());
      for (size_t m = 0; m < summaries.size(); ++m)
        part.means.push_back({task.summaries()[m], summaries[m]});
    }
  };
  if (all == 0) end_parts();
  while (examples < end) {
    const auto b =
        data.eval_batch(split, examples, std::min(sample.batch, end - examples)).to(compute.device);
    const ModelContext context{.backend = compute.backend, .scored_only = task.takes_scored_only()};
    const auto logits = model.forward(b, context).logits;
    sums += task.sums(logits, b);
    scored += task.scored(b);
    if (const auto of_batch = task.counts(logits, b); of_batch.defined())
      summed = summed.defined() ? summed + of_batch : of_batch;
    examples += b.examples();
    end_parts();
    if (goes_on && !goes_on(examples)) break;
  }
  model.train(was_training);
  return parts;
}

Evaluation evaluate(Model& model, const Sample& sample, const Compute& compute) {
  return evaluate_parts(model, sample, {sample.most}, compute).front();
}

}  // namespace headlab
