// What a sweep is doing, for a person who watches: a live table on a terminal, plain lines
// elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/sweeps/sweep_run.h"
#include "experiments/system/progress.h"

namespace headlab {

class SweepTable {
 public:
  explicit SweepTable(const FrozenSweep& sweep, ProgressOutput output = ProgressOutput::standard());
  SweepTable(const SweepTable&) = delete;
  SweepTable& operator=(const SweepTable&) = delete;
  ~SweepTable();  // leaves the cursor below what it wrote

  void changed(size_t point, const PointStatus& status);
  void looked(const std::vector<PointStatus>& points);

 private:
  // Of one that runs.
  struct Row {
    double since = 0;             // seconds
    std::optional<int64_t> from;  // step that it was first seen at
    int64_t step = 0;
    std::optional<int64_t> steps;  // of the whole run, of its config, else of its manifest
    std::optional<double> loss;
  };

  void say(const std::string& line);
  void look_into(size_t point, Row& row) const;
  std::string running_line(size_t point, const Row& row) const;
  std::string head_line(const std::vector<PointStatus>& points) const;
  void erase();
  void put(const std::string& text);

  const FrozenSweep& sweep_;
  ProgressOutput output_;
  std::map<size_t, Row> rows_;
  std::string live_;     // text of the live table; "": none stands there
  double drawn_at_ = 0;  // seconds
};

// Runs a sweep while its table is shown: how each point ended, and the exit code of all.
std::pair<std::vector<PointStatus>, int> run_shown(const FrozenSweep& sweep, SweepOrders orders);

}  // namespace headlab
