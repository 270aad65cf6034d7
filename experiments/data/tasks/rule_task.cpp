#include "experiments/data/tasks/rule_task.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"

namespace headlab {

void RuleTask::write_example(Draws& draws, ExampleUse use, int64_t* ids, int64_t* targets) const {
  const auto example = draw(draws, use.trained_on);
  std::copy(example.ids.begin(), example.ids.end(), ids);
  const auto labels = label(example, use.evaluated);
  std::copy(labels.begin(), labels.end(), targets);
}

void refuse_place(int64_t t, const std::string& what) {
  throw DataError(fmt::format("place {}: {}", t, what));
}

std::vector<std::string> Halves::texts() const {
  std::vector<std::string> texts;
  for (int64_t key = 0; key < keys(); ++key) texts.push_back(fmt::format("k{}", key));
  for (int64_t value = 0; value < values(); ++value) texts.push_back(fmt::format("v{}", value));
  return texts;
}

void AnswerOptions::visit(Fields& f) {
  SyntheticOptions::visit(f);
  f("targets", targets,
    "what training asks: every next token, or answers alone, as an evaluation always does",
    one_of({"next", "answers"}));
}

}  // namespace headlab
