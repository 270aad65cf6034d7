// The tables of a comparison as spreadsheets and papers take them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/sweeps/sweep_summary.h"

namespace headlab {

// The table of a task as compare.md has it.
struct TaskTable {
  std::vector<std::string> head;
  // An arm each, then what arms are held against; as many cells as the head.
  std::vector<std::vector<std::string>> rows;
};

// "1.6580 ± 0.0100": the standard deviation is 0 where there is none.
std::string spread_cell(const Spread& spread);

// A row an arm of every task, a column each number of compare.json but those of curves and of
// single runs: a metric's are named as there, without "metrics": "val/loss.difference.low". Empty
// where an arm has none.
std::string comparison_csv(const nlohmann::ordered_json& object);

// The tables, one a task of the object, with booktabs; what says how large an arm is and what its
// heads did is left out, for papers have no room for it. Captions say what figures were measured
// on, on which machine, and by which commit: compare.json does, or the manifests of the runs.
std::string comparison_latex(const nlohmann::ordered_json& object,
                             const std::vector<TaskTable>& tables);

}  // namespace headlab
