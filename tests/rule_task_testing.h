// What the tests of tasks with a rule share.
#pragma once

#include "core/errors.h"
#include "experiments/data/tasks/rule_task.h"
#include "tests/data_testing.h"

namespace headlab::testing {

// The labels of these ids as the task of these options has them.
inline std::vector<int64_t> labels(const std::string& options, const RuleExample& example,
                                   bool evaluated = false) {
  return dynamic_cast<const RuleTask&>(*open(options)).label(example, evaluated);
}

inline std::string refused(const std::string& options) {
  return error_of<ConfigError>([&] { open(options); });
}

// What is said of an example that is none of the task's.
inline std::string refused(const std::string& options, const RuleExample& example) {
  return error_of<DataError>([&] { labels(options, example); });
}

// The share of the scored targets of an evaluation that `guess` says, of the ids of an example.
template <class Guess>
double share_right(const std::string& options, Guess guess) {
  const auto data = open(options + ", eval_examples: 2000");
  const Batch batch = data->eval_batch(Split::kValidation, 0, 2000);
  int64_t right = 0;
  for (int64_t n = 0; n < 2000; ++n) {
    const auto ids = row(batch.ids, n), targets = row(batch.targets, n);
    for (size_t t = 0; t < ids.size(); ++t)
      if (targets[t] >= 0) right += guess(ids, static_cast<int64_t>(t)) == targets[t];
  }
  return static_cast<double>(right) / batch.targets.ge(0).sum().item<double>();
}

constexpr int64_t kNo = kIgnored;

}  // namespace headlab::testing
