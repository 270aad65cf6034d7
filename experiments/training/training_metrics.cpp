#include "experiments/training/training_metrics.h"

#include <set>
#include <stdexcept>

#include "core/torch.h"
#include "experiments/data/test_part.h"
#include "experiments/inference/translated_text.h"

namespace headlab {
namespace {

using NumberOf = std::function<std::optional<double>(const TrainingRow&)>;

// None where the row has no losses, update or gates.
template <class Get>
NumberOf of_losses(Get get) {
  return [get](const TrainingRow& row) -> std::optional<double> {
    return row.losses ? std::optional<double>(get(*row.losses)) : std::nullopt;
  };
}

NumberOf of_update(double TrainingRow::Update::*number) {
  return [number](const TrainingRow& row) -> std::optional<double> {
    return row.update ? std::optional((*row.update).*number) : std::nullopt;
  };
}

template <class Number>
NumberOf of_gates(Number GateDecisions::*number) {
  return [number](const TrainingRow& row) -> std::optional<double> {
    return row.gates ? std::optional(static_cast<double>((*row.gates).*number)) : std::nullopt;
  };
}

// `names`: those that have a metric of their own.
NumberOf sum_of_aux(const std::set<std::string>& names) {
  return of_losses([names](const TrainingRow::Losses& losses) {
    double sum = 0;
    for (const auto& [name, loss] : losses.aux) {
      if (!names.count(name))
        throw std::logic_error("the loss '" + name + "' is not among its heads' aux_names()");
      sum += loss;
    }
    return sum;
  });
}

TrainingMetric aux_metric(const std::string& name) {
  return {{"aux_" + name, "1", "auxiliary loss '" + name + "'",
           "weighted, over all layers that have it; part of aux_loss"},
          "aux/" + name,
          MetricGroup::kScalars,
          [name](const TrainingRow& row) -> std::optional<double> {
            if (!row.losses) return std::nullopt;
            const auto found = row.losses->aux.find(name);
            return found == row.losses->aux.end() ? std::nullopt : std::optional(found->second);
          }};
}

// A part of the data that is evaluated.
struct EvaluatedPart {
  Split split;
  std::string words;
  std::optional<Evaluation> TrainingRow::*evaluation;

  std::string in_log(const std::string& metric) const {
    return std::string(split_name(split)) + "_" + metric;
  }
  std::string in_line(const std::string& metric) const { return metric_name(split, metric); }
};

TrainingMetric evaluation_metric(const EvaluatedPart& part, const TaskMetric& metric) {
  return {
      {part.in_log(metric.name), metric.units, part.words + " " + metric.long_name, metric.formula},
      part.in_line(metric.name),
      MetricGroup::kEvals,
      [of = part.evaluation, name = metric.name](const TrainingRow& row) {
        return row.*of ? std::optional((row.*of)->mean(name)) : std::nullopt;
      }};
}

TrainingMetric derived_metric(const EvaluatedPart& part, const DerivedMetric& metric) {
  auto derived = evaluation_metric(part, metric);
  derived.group = MetricGroup::kDerived;
  derived.value = [of = part.evaluation, of_loss = metric.of_loss](const TrainingRow& row) {
    return row.*of ? std::optional(of_loss((row.*of)->loss())) : std::nullopt;
  };
  return derived;
}

void add_part(std::vector<TrainingMetric>& table, const EvaluatedPart& part, const Task& task) {
  for (const auto* metrics : {&task.metrics(), &task.summaries()})
    for (const auto& metric : *metrics) table.push_back(evaluation_metric(part, metric));
  for (const auto& metric : task.derived()) table.push_back(derived_metric(part, metric));
  // What these were measured on. Rows before the last have no numbers of the test part, and
  // integers no NaN.
  const bool counts = part.split == Split::kValidation;
  const auto add = [&](const char* name, const char* units, const std::string& what,
                       const std::string& formula, auto number) {
    table.push_back({{part.in_log(name), units, what, formula, counts},
                     part.in_line(name),
                     MetricGroup::kEvals,
                     [of = part.evaluation, number](const TrainingRow& row) {
                       return row.*of ? std::optional<double>(number(*(row.*of))) : std::nullopt;
                     }});
  };
  const auto behind = "count behind " + part.in_log(task.metrics().front().name);
  add("tokens", "token", "scored " + part.words + " targets", behind,
      [](const Evaluation& e) { return e.tokens; });
  add("examples", "1", part.words + " examples", behind,
      [](const Evaluation& e) { return e.examples; });
  add("whole_split", "1", "whether the whole " + part.words + " split was measured",
      "1: all of its examples; 0: its first train.eval_batches batches",
      [](const Evaluation& e) { return e.whole_split(); });
}

}  // namespace

TrainingRow::Losses TrainingRow::Losses::of(const Updater::Losses& losses) {
  Losses read{.nll = losses.nll.item<double>()};
  if (losses.smoothed.defined()) read.smoothed = losses.smoothed.item<double>();
  for (const auto& aux : losses.aux) read.aux[aux.name] = aux.value.item<double>();
  return read;
}

std::vector<TrainingMetric> training_metrics(const Experiment& experiment, Model& model,
                                             const Task& task) {
  using Losses = TrainingRow::Losses;
  using Update = TrainingRow::Update;
  const auto aux = model.aux_names();
  const auto& loss = task.metrics().front();
  std::vector<TrainingMetric> table;
  const auto add = [&](LogVariable about, const char* line, NumberOf value,
                       std::optional<double> absent = std::nullopt) {
    table.push_back({std::move(about), line, MetricGroup::kScalars, std::move(value), absent});
  };
  add({"train_loss", loss.units, "training " + loss.long_name, loss.formula + " of the update"},
      "train/loss", of_losses([](const Losses& losses) { return losses.nll; }));
  add({"aux_loss", "1", "auxiliary losses", "sum of the heads' weighted auxiliary losses"}, "",
      sum_of_aux(aux));
  add({"lr", "1", "learning rate", "of this update, by the schedule"}, "lr", of_update(&Update::lr),
      0);
  add({"grad_norm", "1", "gradient norm", "L2 over all parameters, before clipping"}, "grad_norm",
      of_update(&Update::grad_norm), 0);
  add({"tokens_per_s", "1/s", "throughput", "training tokens a second since the last row"},
      "tokens_per_s", of_update(&Update::tokens_per_s), 0);
  if (experiment.train.label_smoothing > 0)
    add({"smoothed_loss", "nat", "loss with smoothed labels",
         "what is optimised beside aux_loss: (1 - e) train_loss + e mean over the vocabulary of "
         "-ln p, e = train.label_smoothing"},
        "train/smoothed_loss",
        [](const TrainingRow& row) { return row.losses ? row.losses->smoothed : std::nullopt; });
  for (const auto& name : aux) table.push_back(aux_metric(name));
  if (gate_decisions(model)) {
    add({"gates_undecided", "1", "undecided gates",
         "heads with 0 < clipped test gate < 1; the histogram behind it is that of log_alpha in "
         "/heads",
         /*counts=*/true},
        "gates/undecided", of_gates(&GateDecisions::undecided));
    add({"gates_alive", "1", "heads alive by their gates", "heads with test gate > 0",
         /*counts=*/true},
        "gates/alive", of_gates(&GateDecisions::alive));
    add({"gates_expected", "1", "heads expected open", "sum over heads of p_open"},
        "gates/expected", of_gates(&GateDecisions::expected));
  }
  add_part(table, {Split::kValidation, "validation", &TrainingRow::evaluation}, task);
  if (experiment.train.bleu_every > 0) {
    auto bleu = evaluation_metric({Split::kValidation, "validation", &TrainingRow::evaluation},
                                  bleu_metric());
    bleu.value = [](const TrainingRow& row) {
      return row.evaluation ? row.evaluation->bleu : std::nullopt;
    };
    table.push_back(std::move(bleu));
  }
  if (asks_for_test(experiment.data))
    add_part(table, {Split::kTest, "test", &TrainingRow::test}, task);
  return table;
}

std::vector<LogVariable> variables_of(const std::vector<TrainingMetric>& table, MetricGroup group) {
  std::vector<LogVariable> variables;
  for (const auto& metric : table)
    if (metric.group == group) variables.push_back(metric);
  return variables;
}

RunLog::Values logged(const std::vector<TrainingMetric>& table, MetricGroup group,
                      const TrainingRow& row) {
  RunLog::Values values;
  for (const auto& metric : table) {
    if (metric.group != group) continue;
    auto value = metric.value(row);
    if (!value) value = metric.absent;
    if (value) values[metric.name] = *value;
  }
  return values;
}

Metrics line_of(const std::vector<TrainingMetric>& table, const TrainingRow& row) {
  Metrics line;
  for (const auto& metric : table) {
    if (metric.line.empty()) continue;
    if (const auto value = metric.value(row)) line[metric.line] = *value;
  }
  return line;
}

Metrics status_metrics(const Evaluation& evaluation, const Task& task) {
  Metrics metrics;
  const auto add = [&](const std::string& name, double value) {
    metrics[metric_name(evaluation.split, name)] = value;
  };
  for (const auto& [name, count] : measured_attributes(evaluation))
    add(name, static_cast<double>(count));
  for (const auto& mean : evaluation.means) add(mean.name, mean.value);
  for (const auto& metric : derived_of(evaluation, task)) add(metric.name, metric.value);
  return metrics;
}

}  // namespace headlab
