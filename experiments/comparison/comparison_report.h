// What a comparison found, as Markdown, as JSON and as tables for other programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/comparison/comparison_results.h"
#include "experiments/comparison/comparison_tables.h"

namespace headlab {

// One a task.
std::vector<TaskTable> comparison_tables(const Comparison& comparison, const ChosenRates& rates,
                                         const std::vector<ComparedTask>& tasks);

// These, and below each what its figures were measured on and what must be known of them.
std::string comparison_text(const Comparison& comparison, const ChosenRates& rates,
                            const std::vector<ComparedTask>& tasks,
                            const std::vector<TaskTable>& tables);

// What stands below the table of task number t: what its figures were measured on and tested by,
// and what must be known of them. `rates`: of its arms.
std::string notes_text(const Comparison& comparison, const std::vector<ChosenRate>& rates,
                       const ComparedTask& task, size_t t);

// The comparison with every number behind it: of each training, of each curve, and of each rate
// that was tried.
nlohmann::ordered_json comparison_json(const Comparison& comparison, const ChosenRates& rates,
                                       const std::vector<ComparedTask>& tasks);

// Where the trainings lie and by what they were made, one each.
nlohmann::ordered_json runs_json(const std::vector<SweepRow>& rows);

// compare.json, compare.md, compare.csv and compare.tex in the comparison's folder. RunError where
// the storage refuses.
void write_comparison(const Comparison& comparison, const nlohmann::ordered_json& object,
                      const std::string& text, const std::vector<TaskTable>& tables);

}  // namespace headlab
