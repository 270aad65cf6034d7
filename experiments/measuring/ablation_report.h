// What ablations of a model's heads showed: as text, as JSON and as arrays of a file.
#pragma once

#include <nlohmann/json.hpp>

#include "experiments/inference/evaluate.h"
#include "experiments/logs/result_arrays.h"
#include "experiments/measuring/ablation.h"
#include "experiments/runs/open_run.h"

namespace headlab {

// One way of choosing sets of heads, and what came of it in every mode.
struct AblationStudy {
  std::string prefix;  // of its variables in the file: "", "pair_", "only_"
  std::string what;
  std::vector<std::string> dims;
  std::vector<std::vector<HeadId>> sets;    // heads that go
  std::vector<std::vector<HeadId>> places;  // the grid's cells that the result stands in
  std::map<std::string, std::vector<Ablated>> by_mode = {};
};

// Leaves of a study what is about these heads alone.
void keep_heads(AblationStudy& study, const std::vector<HeadId>& heads);
AblationStudy study_of_heads(Model& model);        // each alone
AblationStudy study_of_pairs(Model& model);        // every pair
AblationStudy study_of_all_but_one(Model& model);  // each layer without all others

// Ablates every study in every mode, with progress on stderr.
void run_studies(std::vector<AblationStudy>& studies, const std::vector<std::string>& modes,
                 Model& model, const Sample& sample, const Compute& compute);

// The object of a single mode; of several: one under each mode's name.
// `task`: that of the run.
nlohmann::ordered_json studies_json(const std::vector<AblationStudy>& studies,
                                    const std::vector<std::string>& modes, const Task& task);
// Tables, and what their columns are, with units. `sort`: the largest rise of the loss first.
std::string studies_text(const std::vector<AblationStudy>& studies,
                         const std::vector<std::string>& modes, const Task& task, bool sort);
// The groups /ablation/<site>: modes, layers and heads, with an array a change and study, which
// says what it was measured on as `whole`, the whole model, was.
std::vector<LabelledGroup> studies_groups(const std::vector<AblationStudy>& studies,
                                          const std::vector<std::string>& modes, Model& model,
                                          const Task& task, const Evaluation& whole);

}  // namespace headlab
