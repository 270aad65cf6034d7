#include "experiments/inference/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/models/finite_weights.h"
#include "experiments/ranks/comm.h"
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

namespace {

// What a batch adds, in one row of float64 [M+1+C]: Task::sums(), scored(), counts().
Tensor row_of(const Task& task, const Tensor& logits, const Batch& batch) {
  std::vector<Tensor> row{task.sums(logits, batch).flatten(), task.scored(batch).flatten()};
  if (const auto counts = task.counts(logits, batch); counts.defined())
    row.push_back(counts.flatten());
  for (auto& part : row) part = part.to(logits.device(), at::kDouble);
  return at::cat(row);
}

// The rows of a round of `batches`, one a rank in their order, [batches,K]; `own`: of this rank,
// undefined where the round has none for it.
Tensor rows_of_all(const Tensor& own, int64_t batches, const Compute& compute) {
  if (!compute.comm || compute.comm->size() == 1) return own.unsqueeze(0);
  auto& comm = *compute.comm;
  auto columns = at::full({1}, own.defined() ? own.numel() : 0, at::kLong);
  if (batches < comm.size()) comm.broadcast(columns);  // a rank without one does not know
  auto rows = at::zeros({batches, columns.item<int64_t>()}, at::kDouble);
  if (own.defined()) rows[comm.rank()].copy_(own);
  comm.sum(rows);
  return rows;
}

}  // namespace

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
  const int64_t metrics = std::ssize(task.metrics());
  Tensor totals;  // [M+1+C]; C is known after a batch
  std::vector<Evaluation> parts(most.size());
  int64_t examples = 0;
  const auto end_parts = [&] {
    for (size_t n = 0; n < parts.size(); ++n) {
      if (ends[n] != examples) continue;
      auto& part = parts[n];
      part.split = split;
      part.examples = examples;
      const auto known = totals.defined() ? totals.cpu() : at::zeros({metrics + 1}, at::kDouble);
      part.tokens = static_cast<int64_t>(known[metrics].item<double>());
      part.batches = examples < all ? most[n] : 0;
      part.of_split = data.tokens(split);
      if (part.tokens == 0 && examples > 0 && !task.metrics().empty())
        throw DataError(
            fmt::format("split {}: none of the targets of its {} examples is scored, "
                        "so there is nothing to measure; measure on more of it",
                        split_name(split), examples));
      const auto means = known.narrow(0, 0, metrics) / known[metrics].clamp_min(1);
      for (const auto& metric : task.metrics()) {
        const auto mean = means[std::ssize(part.means)].item<double>();
        part.means.push_back({metric, std::isnan(mean) ? std::abs(mean) : mean});  // never "-nan"
      }
      const auto summaries =
          known.numel() > metrics + 1
              ? task.summarised(known.narrow(0, metrics + 1, known.numel() - metrics - 1))
              : std::vector<double>(task.summaries().size());
      for (size_t m = 0; m < summaries.size(); ++m)
        part.means.push_back({task.summaries()[m], summaries[m]});
    }
  };
  if (all == 0) end_parts();
  const int64_t ranks = compute.comm ? compute.comm->size() : 1;
  const int64_t rank = compute.comm ? compute.comm->rank() : 0;
  while (examples < end) {
    const int64_t left = (end - examples + sample.batch - 1) / sample.batch;
    const int64_t batches = std::min(left, ranks);
    Tensor own;
    if (rank < batches) {
      const int64_t first = examples + rank * sample.batch;
      const auto b =
          data.eval_batch(split, first, std::min(sample.batch, end - first)).to(compute.device);
      const ModelContext context{.backend = compute.backend,
                                 .scored_only = task.takes_scored_only()};
      own = row_of(task, model.forward(b, context).logits, b);
    }
    const auto rows = rows_of_all(own, batches, compute);
    for (int64_t n = 0; n < batches; ++n) {
      totals = (totals.defined() ? totals : at::zeros_like(rows[n])) + rows[n];
      examples += std::min(sample.batch, end - examples);
      end_parts();
    }
    if (goes_on && !goes_on(examples)) break;
  }
  model.train(was_training);
  return parts;
}

Evaluation evaluate(Model& model, const Sample& sample, const Compute& compute) {
  return evaluate_parts(model, sample, {sample.most}, compute).front();
}

}  // namespace headlab
