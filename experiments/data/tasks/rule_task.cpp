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

std::string Halves::text(int64_t id) const {
  return is_key(id) ? fmt::format("k{}", id) : fmt::format("v{}", id - keys());
}

}  // namespace headlab
