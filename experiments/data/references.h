// What a model's loss and metrics are to be held against: those of a guess, and of counts of the
// training part, measured on exactly the targets that an evaluation scores.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/data/source.h"

namespace headlab {

inline constexpr const char* kChance = "chance";
inline constexpr const char* kPlace = "place";

struct Reference {
  // "chance", "place", "unigram", "bigram"; of classes "commonest" in place of a unigram
  std::string name;
  std::string how;  // what it predicts
  // Of the task's metrics and summaries. What counts foretell names the likeliest token or class.
  std::vector<MetricValue> values = {};

  std::optional<double> value(const std::string& metric) const;
};

struct References {
  Split split = Split::kValidation;
  int64_t examples = 0, tokens = 0;  // measured on: all of the split; scored targets
  // The guess first. None: the task is not to predict words or classes, or the split is empty.
  std::vector<Reference> all = {};

  const Reference* find(const std::string& name) const;  // null: there is none
  // Of chance and place, which take no look at what the example shows, the better one by `metric`;
  // null: there is none.
  const Reference* guess(const std::string& metric, bool higher_is_better) const;
};

// Unigrams are of data that draw their answers from a text or from files, bigrams of those where
// each token predicts the next. Neither: without a training part.
References references_of(const DataSource& data, Split split);

// Whether that takes no more than a fraction of a second.
bool references_are_quick(const DataSource& data, Split split);

// {"chance": {"loss": ..., "accuracy": ..., "comment": ...}, ..., "units": {"loss": "nat", ...},
// "measured_on": {"split", "examples", "tokens"}}; null where there are none.
nlohmann::ordered_json references_json(const References& references);

}  // namespace headlab
