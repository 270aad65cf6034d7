// The whole experiment as a config describes it: data, model, training, log.
#pragma once

#include "core/config/config.h"
#include "experiments/files/count_or_share.h"

namespace headlab {

class DataSource;

struct CheckpointOptions : Block {
  int64_t every = 500, keep_last = 2;
  bool keep_best = true;
  void visit(Fields& f) override;
};

struct EarlyStopOptions : Block {
  int64_t patience = 0;
  double min_delta = 0;
  void visit(Fields& f) override;
};

struct TrainOptions : Block {
  std::optional<int64_t> steps, epochs;  // the first that is reached ends the run; see visit()
  int64_t batch = 12, accumulate = 1;    // an update's examples, and its micro-batches
  std::optional<int64_t> max_positions;  // of an update; in place of batch
  double lr = 1e-3;
  std::optional<double> min_lr;
  CountOrShare warmup = 100;  // of all updates
  std::string schedule = "cosine";
  std::optional<int64_t> decay_steps;
  std::string optimizer = "adamw";
  std::vector<double> betas{0.9, 0.99};
  double eps = 1e-8, weight_decay = 0.1, clip = 1, label_smoothing = 0;
  double gate_lr = 0.1, multiplier_lr = 0.01;
  bool gates_only = false;
  std::string precision = "auto";
  int64_t eval_every = 250, eval_batches = 20, eval_batch = 64, bleu_every = 0;
  EarlyStopOptions early_stop;
  CheckpointOptions checkpoint;
  std::optional<int64_t> threads;
  std::string busy_cores = "auto";
  bool deterministic = false, fast_sum = false;
  std::optional<double> max_time;

  double floor() const { return min_lr.value_or(lr / 10); }
  // What an epoch of the data has: examples, or batches by size where max_positions is set; 0: no
  // epochs. ConfigError where the data cannot be batched by size.
  int64_t epoch_size(const DataSource& data) const;
  // Updates of the whole run. ConfigError where epochs are asked of data that have none.
  int64_t total_steps(int64_t epoch_size) const;
  int64_t total_steps(const DataSource& data) const { return total_steps(epoch_size(data)); }
  int64_t decays_over(int64_t epoch_size) const {
    return decay_steps.value_or(total_steps(epoch_size));
  }
  // ConfigError where so many processes cannot share an update: each takes as many micro-batches.
  void require_parts(int64_t processes) const;
  void visit(Fields& f) override;
  void check(const Complain& complain) const override;
};

struct AttentionLogOptions : Block {
  int64_t every = 500, probes = 4;
  std::vector<int64_t> layers, heads;  // empty: all
  int64_t max_positions = 128;
  int64_t max_bytes = int64_t{2} << 30;
  void visit(Fields& f) override;
};

struct LogOptions : Block {
  int64_t every = 10, stats_every = 50;
  std::vector<std::string> stats;  // empty: the ones always on; "all"; or names
  AttentionLogOptions attention;
  int64_t flush_every = 10;
  bool swmr = true;
  void visit(Fields& f) override;
  void check(const Complain& complain) const override;
  std::vector<std::string> statistics() const;  // resolved names, in the table's order
};

struct Experiment : Block {
  std::string name, tag;
  FilePath init;  // empty: drawn weights
  int64_t seed = 1337;
  std::string dtype = "fp32";
  KindBlock data, model;
  TrainOptions train;
  LogOptions log;

  Experiment();
  bool half_weights() const { return dtype == "bf16"; }
  void visit(Fields& f) override;
  void check(const Complain& complain) const override;
  OtherWords other_words() const override;
};

// load_config() of an experiment: it is called after the file unless the file, not one that it
// extends, or an override says `name`.
ConfigNode load_experiment(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides = {});

}  // namespace headlab
