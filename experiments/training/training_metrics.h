// The numbers of a training run, each named once: layout and rows of log.h5, lines of metrics.jsonl
// and status.json are made of one table.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "experiments/inference/evaluate.h"
#include "experiments/logs/run_log.h"
#include "experiments/models/gate_decisions.h"
#include "experiments/models/model.h"
#include "experiments/runs/experiment.h"
#include "experiments/runs/run_metrics.h"
#include "experiments/training/update.h"

namespace headlab {

// What is known of a step. Numbers are read from the device once, here.
struct TrainingRow {
  struct Losses {
    double nll = 0;
    std::optional<double> smoothed = {};     // where labels are smoothed
    std::map<std::string, double> aux = {};  // of the heads, by name, weighted
    static Losses of(const Updater::Losses& losses);
  };
  struct Update {
    double lr = 0, grad_norm = 0, tokens_per_s = 0;
  };
  std::optional<Losses> losses = {};
  std::optional<Update> update = {};          // none: the losses of a model that is not yet trained
  std::optional<GateDecisions> gates = {};    // with the weights before the update
  std::optional<Evaluation> evaluation = {};  // of validation
  std::optional<Evaluation> test = {};        // of the test part: in the last row, where asked for
};

// Of the log; kDerived: follows from numbers that the log has, and is in the lines only.
enum class MetricGroup { kScalars, kEvals, kDerived };

struct TrainingMetric : LogVariable {
  std::string line;  // its name in metrics.jsonl and status.json; empty: it is in the log only
  MetricGroup group = MetricGroup::kScalars;
  std::function<std::optional<double>(const TrainingRow& row)> value;  // none: the row lacks it
  std::optional<double> absent = {};  // what the log has where the row lacks it; none: NaN
};

// Those of a run of these settings, in the order of the log.
std::vector<TrainingMetric> training_metrics(const Experiment& experiment, Model& model,
                                             const Task& task);

std::vector<LogVariable> variables_of(const std::vector<TrainingMetric>& table, MetricGroup group);
RunLog::Values logged(const std::vector<TrainingMetric>& table, MetricGroup group,
                      const TrainingRow& row);
// Of both groups, by the names in metrics.jsonl.
Metrics line_of(const std::vector<TrainingMetric>& table, const TrainingRow& row);

// What status.json says of a model that was evaluated and not trained: val/loss, ..., by the split,
// with what they were measured on.
Metrics status_metrics(const Evaluation& evaluation, const Task& task);

}  // namespace headlab
