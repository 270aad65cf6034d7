// What the arms of a task are to be held against: a guess, and counts of its training part.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/comparison/comparison_results.h"

namespace headlab {

// The most that guesses of this accuracy reach, in 39 of 40 splits of so many scored targets.
double reached_by_guesses(double chance, int64_t targets);

// Whether an arm has learned more than to guess: its 95 % interval over seeds, or its only seed, is
// beyond what guesses reach. None: it has no such metric, or its task no chance. Judged by the
// first metric of which more is better, else by the loss.
std::optional<bool> above_chance(const ComparedArm& arm, const std::vector<FinalMetric>& metrics,
                                 const References& references);

// Fills the task's references, measured on the split that its metrics are of. An arm that is not
// above chance loses its speedup, and the stars of its means.
void hold_against_references(const Comparison& comparison, size_t task, ComparedTask& compared);

// "No arm is above chance: ...", where that is so; else nothing.
std::string chance_text(const ComparedTask& task);

// A row of a table each, below those of the arms; `head` names its columns.
std::vector<std::vector<std::string>> reference_rows(const std::vector<std::string>& head,
                                                     const std::vector<FinalMetric>& metrics,
                                                     const References& references);

// {"chance": {"val/loss": ..., "val/accuracy": ..., "comment": ...}, ...}
nlohmann::ordered_json references_of_task_json(const References& references);

}  // namespace headlab
