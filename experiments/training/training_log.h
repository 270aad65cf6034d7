// The HDF5 log of a training run: what it holds, and rows made from the trainer's tensors.
#pragma once

#include <filesystem>

#include "experiments/data/source.h"
#include "experiments/logs/run_log.h"
#include "experiments/models/site_heads.h"
#include "experiments/models/site_probes.h"
#include "experiments/runs/experiment.h"
#include "experiments/training/training_metrics.h"

namespace headlab {

// Bytes of all the maps that a run of these settings would log (before compression).
int64_t total_map_bytes(const Experiment& experiment, Model& model, const DataSource& data);

// Bytes of all the head statistics that it would log.
int64_t total_statistics_bytes(const Experiment& experiment, Model& model, const DataSource& data);

// Probes that see what a log of these settings has statistics of.
std::unique_ptr<SiteProbes> training_probes(const Experiment& experiment, Model& model,
                                            const DataSource& data);

class TrainingLog {
 public:
  // Where the log lies, and what it says of its run.
  struct File {
    std::filesystem::path path;
    RootAttributes root;
    struct Resumed {
      int64_t step = 0;  // of the checkpoint
      double wall_s = 0;
    };
    std::optional<Resumed> resumed = {};  // none: of a training that begins
  };

  // Opens a new log, or goes on with an old one after the step that is resumed, without the
  // statistics that it was begun without. RunError where it cannot.
  TrainingLog(const File& file, const Experiment& experiment, Model& model, const DataSource& data,
              const std::vector<TrainingMetric>& metrics);

  // Statistics, and numbers of evaluations, that are not logged because the log was begun without
  // them.
  const std::vector<std::string>& absent() const { return absent_; }
  RunLog& file() { return log_; }

  // The probes for the forward passes of one update, which forget what they saw before.
  SiteProbes& fresh_probes();
  void heads(int64_t step);  // the rows of everything the probes have seen
  // Numbers by name in the log, of `metrics`, without those that it was begun without.
  void eval(int64_t step, const RunLog::Values& values);
  // Maps of the chosen examples, in eval mode with the weights as they are.
  void maps(int64_t step, const Compute& compute);

 private:
  Model& model_;
  std::optional<Batch> map_examples_;  // none: no maps
  std::vector<SiteHeads> heads_;
  std::vector<LogSite> sites_;  // of the same sites
  std::vector<LogVariable> evals_;
  std::vector<std::string> absent_;
  SiteProbes probes_;
  RunLog log_;
};

}  // namespace headlab
