// The losses of the arms after shorter trainings, and whether their order has settled.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "experiments/comparison/comparison_results.h"
#include "experiments/comparison/comparison_tables.h"

namespace headlab {

// Fills at_lengths of the arms, and `settled` of the task where arms were trained for half of the
// length, too. After differences are formed.
void add_lengths(const Comparison& comparison, size_t task, const ChosenRates& rates,
                 const Stage& whole, const StageEnd& end, ComparedTask& compared);

// Before any row of the table: whether its order has settled, a sentence.
std::string settled_text(const ComparedTask& task);
// The losses at all lengths of the task of this number.
TaskTable lengths_table(const Comparison& comparison, const ComparedTask& task, size_t number);
nlohmann::ordered_json settled_json(const ComparedTask& task);
// `loss`: by which name it was measured.
nlohmann::ordered_json lengths_json(const ComparedArm& arm, const std::string& loss);

}  // namespace headlab
