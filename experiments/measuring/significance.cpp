#include "experiments/measuring/significance.h"

#include <fmt/format.h>

#include <optional>

#include "experiments/logs/result_arrays.h"
#include "experiments/measuring/change_of_outputs.h"

namespace headlab {
namespace {

// A loss is a mean of float32 numbers of about 1: what its changes are known to.
constexpr double kRounding = 8 * std::numeric_limits<float>::epsilon();

}  // namespace

bool Significance::more_than_chance() const { return holm < kReportedBelow; }

std::vector<Significance> significance_of(const std::vector<std::vector<double>>& rows,
                                          const Task& task) {
  std::vector<Significance> found;
  std::vector<std::optional<double>> p;  // of rows that were measured
  for (const auto& changes : rows) {
    auto& row = found.emplace_back(Significance{.examples = std::ssize(changes)});
    if (changes.empty()) continue;
    row.interval = half_interval(spread_of(changes)).value_or(kNaN);
    p.push_back(task.least_at_whole() || found.back().examples < kLeastExamples
                    ? std::nullopt
                    : mean_p_value(changes, kRounding));
  }
  const auto corrected = holm(p);
  size_t n = 0;
  for (auto& row : found) {
    if (row.examples == 0) continue;
    if (p[n]) row.p = *p[n], row.holm = *corrected[n];
    ++n;
  }
  return found;
}

std::vector<SignificanceVariable> significance_variables(const Task& task) {
  const auto& loss = task.metrics().front();
  const auto change = "such a change of the " + loss.long_name;
  return {{{"p_value", "1", "chance of " + change + ", tested alone",
            fmt::format("two-sided t test over the examples that their mean change is 0; NaN: "
                        "none, of fewer than {} examples, or where the whole model has the least",
                        kLeastExamples)},
           [](const Significance& s) { return s.p; }},
          {{"p_holm", "1", "chance of " + change, significance_legend(task)},
           [](const Significance& s) { return s.holm; }},
          {{"p_examples", "1", "examples that p is of", "examples with a scored target",
            /*counts=*/true},
           [](const Significance& s) { return static_cast<double>(s.examples); }},
          {{change_name(loss) + "_interval", loss.units,
            "half the 95 % interval of the change of the " + loss.long_name,
            "of t, over the examples: their mean change is known to plus or minus it"},
           [](const Significance& s) { return s.interval; }}};
}

nlohmann::ordered_json SignificanceVariable::json(const Significance& of) const {
  if (counts) return static_cast<int64_t>(value(of));
  return value(of);
}

std::string p_text(double p) {
  if (std::isnan(p)) return "-";
  return p < 1e-4 ? "< 0.0001" : fmt::format("{:.2g}", p);
}

std::string p_legend(const Task& task) {
  const auto& loss = task.metrics().front().long_name;
  if (task.least_at_whole())
    return fmt::format("none: any change raises the {}, which is least at the whole model", loss);
  return fmt::format(
      "chance of such a change of the {} where there is no effect: two-sided t test over the "
      "examples, after Holm's correction for all that are tested together; none of fewer than {} "
      "examples",
      loss, kLeastExamples);
}

std::string star_legend() { return fmt::format("p < {}", kReportedBelow); }

std::string significance_legend(const Task& task) {
  const auto p = "p: " + p_legend(task);
  return task.least_at_whole() ? p : fmt::format("*: {}; {}", star_legend(), p);
}

}  // namespace headlab
