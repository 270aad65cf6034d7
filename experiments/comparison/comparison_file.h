// A comparison file: which arms are compared on which tasks, and by what protocol. No torch in
// here, and no file is opened.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/config/config.h"
#include "experiments/sweeps/rate_search.h"

namespace headlab {

using NamedSettings = std::vector<std::pair<std::string, ConfigNode>>;  // as overrides name them

// What is adapted until an arm is as large as the baseline: the width of its MLP or its head_dim,
// by parameters; or the width of its MLP, by the FLOPs of a token.
enum class Match { kHiddenWidth, kHeadDim, kFlops, kNone };
std::string match_name(Match match);  // "d_ff", "head_dim", "flops", "none"

struct ComparisonTask {
  std::string name;
  ConfigNode base;  // the path of a config, as it is written
  NamedSettings settings;
  std::vector<double> rates;          // rising; its own, or those of all tasks
  std::optional<RateGrid> search;     // in place of `rates`
  double choose_at = 0.25;            // share of the steps at which rates are chosen
  Match match = Match::kHiddenWidth;  // its own, or that of all tasks
  std::vector<std::string> kinds;     // names of the arms that it takes; none: all

  bool takes(const std::string& arm) const {
    return kinds.empty() || std::find(kinds.begin(), kinds.end(), arm) != kinds.end();
  }
  // With one rate there is nothing to choose.
  bool chooses() const { return search || rates.size() > 1; }
  double first_rate() const { return search ? search->from : rates.front(); }
  // Steps of a share of a training, at least one.
  static int64_t share_of(double share, int64_t steps);
};

struct ComparisonArm {
  std::string name;
  NamedSettings settings;
};

struct ComparisonFile {
  std::vector<ComparisonTask> tasks;
  std::vector<ComparisonArm> arms;
  std::vector<int64_t> choose_seeds, seeds;
  std::vector<double> lengths{1};  // shares of the steps that arms are compared after; the last: 1
  size_t baseline = 0;             // of arms
};

// ConfigError with everything that is wrong, each with its place.
ComparisonFile read_comparison(const ConfigNode& file);
// JSON schema of a comparison of these settings, for editors.
std::string comparison_schema(Block& settings);

}  // namespace headlab
