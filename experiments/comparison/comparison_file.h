// A comparison file: which arms are compared on which tasks, and by what protocol. No torch in
// here, and no file is opened.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/config/config.h"

namespace headlab {

using NamedSettings = std::vector<std::pair<std::string, ConfigNode>>;  // as overrides name them

// What is adapted until an arm has as many parameters as the baseline.
enum class Match { kHiddenWidth, kHeadDim, kNone };
std::string match_name(Match match);  // "d_ff", "head_dim", "none"

struct ComparisonTask {
  std::string name;
  ConfigNode base;  // the path of a config, as it is written
  NamedSettings settings;
  std::vector<double> rates;          // rising; its own, or those of all tasks
  double choose_at = 0.25;            // share of the steps at which rates are chosen
  Match match = Match::kHiddenWidth;  // its own, or that of all tasks

  // At least one.
  int64_t choosing_steps(int64_t steps) const;
};

struct ComparisonArm {
  std::string name;
  NamedSettings settings;
};

struct ComparisonFile {
  std::vector<ComparisonTask> tasks;
  std::vector<ComparisonArm> arms;
  std::vector<int64_t> choose_seeds, seeds;
  size_t baseline = 0;  // of arms

  // Of a task: with one rate there is nothing to choose.
  static bool chooses(const ComparisonTask& task) { return task.rates.size() > 1; }
};

// ConfigError with everything that is wrong, each with its place.
ComparisonFile read_comparison(const ConfigNode& file);
// JSON schema of a comparison of these settings, for editors.
std::string comparison_schema(Block& settings);

}  // namespace headlab
