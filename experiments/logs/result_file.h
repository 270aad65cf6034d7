// Which file of a run holds which results, so that one question never takes another's answer. No
// torch in here.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/logs/result_arrays.h"

namespace headlab {

// What results are of, in words of a file's name.
struct ResultQuestion {
  std::string about;                      // "ablation"
  std::vector<std::string> measure = {};  // what is not as usual: "mean", "text-To-be-1a2b3c4d"
  std::vector<std::string> extent = {};   // how much of it: "pairs", "batches-1"
};

// RUN/ABOUT[-MEASURE...].h5. Where that is there already with something that `groups` lack of the
// same weights, an array or examples, EXTENT stands behind it, or "usual" where there is none.
// `manifest`: of the results, whose `parent` says which weights they are of.
std::filesystem::path result_file(const std::filesystem::path& run, const ResultQuestion& question,
                                  const nlohmann::ordered_json& manifest,
                                  const std::vector<LabelledGroup>& groups);

// Letters, digits and dots of a text with - between, at most so many: "To-be-or-not".
std::string file_word(std::string_view text, size_t most = 24);

}  // namespace headlab
