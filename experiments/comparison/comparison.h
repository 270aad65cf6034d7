// A comparison as it is to be trained: every arm on every task, with as many parameters as the
// baseline has there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "experiments/comparison/comparison_file.h"
#include "experiments/data/source.h"
#include "experiments/runs/experiment.h"

namespace headlab {

// Sizes count as equal within this share of the baseline's.
inline constexpr double kMatchedWithin = 0.02;

// A number that the trainings of a task end with.
struct FinalMetric {
  std::string name;  // as logs have it: "val/loss"; "test/loss" where the data have a test part
  std::string in_training;  // of the same measure during training, on validation: "val/loss"
  std::string units;
  bool higher_is_better = false;
};

// An arm on a task, but for rate, seed and length.
struct TaskArm {
  ConfigNode config;
  Experiment experiment;
  std::string cannot;  // why its heads have no place on the task; "": they have, and what follows
                       // is known
  bool left_out = false;  // by the task's `kinds`, and therefore has no place
  int64_t parameters = 0;
  int64_t without_places = 0;        // of these, those that are no table of learned positions
  double flops_per_token = 0;        // forward, full context
  double excess = 0;                 // of without_places over the baseline's, as a share of these
  std::optional<int64_t> adapted;    // width that `match` found; none: it stays as it is written
  std::string unmatched;             // why the excess is not within kMatchedWithin; "": it is
  std::string unequal;               // settings that no difference can be formed across; "": none
  int64_t steps = 0;                 // of a whole training
  std::vector<FinalMetric> metrics;  // to compare by: the loss, and what the task is judged by
                                     // beside it; of text the loss alone; all of one split
  std::optional<double> solved_at;   // DataSource::solved_at(), by the second of these

  bool takes_part() const { return cannot.empty(); }
  // The split that its final numbers are of: the test part where `data.test` asks for one, so that
  // nothing is reported by what rates were chosen on; else validation.
  Split measured_on() const;
  // What `match` makes equal. Positions are not the heads' and do not count: an arm with rope is
  // not given wider an MLP than one with learned positions.
  double size(Match match) const {
    return match == Match::kFlops ? flops_per_token : static_cast<double>(without_places);
  }
  int64_t hidden_width() const;  // of the first stack's MLP
  int64_t head_dim() const;      // of its heads
};

// What a comparison is read from.
struct ComparisonSource {
  std::string name;            // of the comparison
  std::filesystem::path file;  // as it was given; paths in it start from its folder
  std::string text;            // YAML
  ConfigNode node;             // of it, with the places where its parts were written
};
// A file, by whose name without its suffix the comparison is called.
ComparisonSource comparison_in(const std::filesystem::path& file);
// One kind of heads against another by the protocol of a file: its tasks, rates, seeds and lengths.
// An arm that the file has under such a name is taken as it stands there. ConfigError where a kind
// is not registered.
ComparisonSource comparison_of_kinds(const std::string& kind, const std::string& against,
                                     const std::filesystem::path& protocol);

struct Comparison {
  std::string name;
  std::filesystem::path file;         // as it was given
  std::string text;                   // that it was read from
  std::filesystem::path out, folder;  // of the runs, and of the comparison's own files; absolute
  ComparisonFile written;
  std::vector<std::vector<TaskArm>> arms;  // by task, in the order of the file

  const TaskArm& baseline(size_t task) const { return arms[task][written.baseline]; }
};

// The comparison that `source` describes; `overrides` lie over what the tasks say, and below what
// the arms do. `task_alone`: the only one of the tasks that is meant; "": all. Nothing is written.
// The folder is named by all that decides what is trained and compared, so that the same comparison
// finds itself. ConfigError with everything that is wrong in any arm, DataError where data cannot
// be read.
Comparison resolve_comparison(const ComparisonSource& source,
                              const std::vector<std::string>& overrides,
                              const std::filesystem::path& out, const std::string& task_alone = "");

// Makes the comparison's folder, with a copy of what it was read from. RunError where the storage
// refuses.
void write_comparison_file(const Comparison& comparison);

// `config` with one more setting, which it may have already.
ConfigNode with_setting(const ConfigNode& config, const std::string& key, const ConfigNode& value);

}  // namespace headlab
