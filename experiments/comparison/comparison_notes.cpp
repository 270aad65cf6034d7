// What stands below a table of a comparison.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "experiments/comparison/comparison_report.h"
#include "experiments/text/with_commas.h"

namespace headlab {
namespace {

std::string matched_text(Match match) {
  if (match == Match::kNone) return "sizes not matched";
  if (match == Match::kFlops) return "FLOPs of a token matched by d_ff";
  return "parameters matched by " + match_name(match);
}

std::string rates_text(const ComparisonTask& task) {
  if (!task.search) return fmt::format("of {}", fmt::join(task.rates, ", "));
  return fmt::format("by a search from {} by factors of {}, at most {} rates,", task.search->from,
                     task.search->factor, task.search->most);
}

// What the seeds of a task that is solved or not could tell.
std::string counts_text(const Comparison& comparison, const ComparedTask& task, size_t t) {
  const auto& baseline = task.arms[comparison.written.baseline];
  const size_t arms = family_size(comparison, t), seeds = comparison.written.seeds.size();
  if (!baseline.solved || arms == 0 || seeds < kFewestSeeds) return "";
  const auto told = tellable_counts(baseline.solved->count(), std::ssize(baseline.solved->solved),
                                    strictest_alpha(arms));
  std::vector<std::string> counts;
  if (told.fewer) counts.push_back(fmt::format("{} or fewer", *told.fewer));
  if (told.more) counts.push_back(fmt::format("{} or more", *told.more));
  return fmt::format(
      " Where {} of {} seeds of {} solved it, Fisher's test tells {}, at p below {:.2g} (Holm's "
      "strictest step, {} over {} arms).",
      baseline.solved->count(), seeds, comparison.written.arms[comparison.written.baseline].name,
      counts.empty() ? "no other number from that"
                     : fmt::format("{} from that", fmt::join(counts, " and ")),
      strictest_alpha(arms), kReportedBelow, arms);
}

// What the tests of a task's table are.
std::string tests_text(const Comparison& comparison, const ComparedTask& task, size_t t) {
  if (const auto rule = solved_rule(comparison, t))
    return fmt::format(
        "Solved: {} of at {} {} at the end. Updates until solved: those before the first "
        "evaluation with such a {}; a seed that has none is censored at its last update. A mean "
        "over seeds "
        "of which some solved the task is no measure, and has no star: stars are of Fisher's exact "
        "test and of the log-rank test.{}\n",
        rule->metric, rule->higher_is_better ? "least" : "most", rule->at, rule->in_training,
        counts_text(comparison, task, t));
  const size_t arms = family_size(comparison, t);
  if (arms == 0 || comparison.written.seeds.size() < kFewestSeeds) return "";
  return fmt::format(
      "Could be told: the smallest difference that a paired t test of so many seeds finds in "
      "{:.0f} "
      "of 100 trials, at p below {:.2g} (Holm's strictest step, {} over {} arms), for the standard "
      "deviation that the arm's differences have.\n",
      100 * kPower, strictest_alpha(arms), kReportedBelow, arms);
}

// What the figures of a task's table were measured on.
std::string measured_on_text(const Comparison& comparison, const ComparedTask& task, size_t t) {
  const auto& written = comparison.written;
  const auto count = [&](const char* name) {
    const auto found = task.measured_on.find(name);
    return found == task.measured_on.end() ? std::string("?")
                                           : with_commas(static_cast<int64_t>(found->second));
  };
  auto text = fmt::format(
      "Measured on the {}{} split, {} examples, {} scored targets; seeds {}",
      task.measured_on.count("whole_split") && task.measured_on.at("whole_split") == 1 ? "whole "
                                                                                       : "",
      split_name(comparison.baseline(t).measured_on()), count("examples"), count("tokens"),
      fmt::join(written.seeds, ", "));
  if (written.tasks[t].chooses()) {
    const int64_t steps = comparison.baseline(t).steps;
    text += fmt::format("; rates chosen by validation loss {} on seed{} {} after {} of {} steps",
                        rates_text(written.tasks[t]), written.choose_seeds.size() > 1 ? "s" : "",
                        fmt::join(written.choose_seeds, ", "),
                        ComparisonTask::share_of(written.tasks[t].choose_at, steps), steps);
  }
  text += fmt::format(
      "; {}; Holm over the arms of this table; *: reported, for the corrected p is below {}",
      matched_text(written.tasks[t].match), kReportedBelow);
  return text + ".\n";
}

// By which losses the rates were chosen, an arm each.
std::string chosen_text(const Comparison& comparison, const std::vector<ChosenRate>& rates) {
  std::vector<std::string> arms;
  const auto told = [](const ChosenRate::Tried& tried) {
    return fmt::format("{} with {:.4f} on {} seed{}", tried.rate, tried.loss.value_or(NAN),
                       tried.seeds, tried.seeds == 1 ? "" : "s");
  };
  for (size_t a = 0; a < rates.size(); ++a) {
    const auto best = std::find_if(rates[a].tried.begin(), rates[a].tried.end(),
                                   [&](const auto& one) { return one.rate == rates[a].rate; });
    if (best == rates[a].tried.end()) continue;
    arms.push_back(fmt::format("{} {}{}", comparison.written.arms[a].name, told(*best),
                               rates[a].runner_up ? ", next " + told(*rates[a].runner_up) : ""));
  }
  if (arms.empty()) return "";
  return fmt::format("- rates, by their mean final validation loss: {}\n", fmt::join(arms, "; "));
}

// Arms that the task's `kinds` leave out.
std::string left_out_text(const Comparison& comparison, size_t t) {
  std::vector<std::string> names;
  for (size_t a = 0; a < comparison.arms[t].size(); ++a)
    if (comparison.arms[t][a].left_out) names.push_back(comparison.written.arms[a].name);
  if (names.empty()) return "";
  return fmt::format("- not trained on this task, by its `kinds`: {}\n", fmt::join(names, ", "));
}

// Digests of the code of the trainings, and whose they are.
std::string codes_text(const Comparison& comparison, const ComparedTask& task) {
  std::map<std::string, std::vector<std::string>> arms;
  for (size_t a = 0; a < task.arms.size(); ++a)
    if (!task.arms[a].code.empty())
      arms[task.arms[a].code].push_back(comparison.written.arms[a].name);
  std::string text;
  for (const auto& [code, names] : arms)
    text += fmt::format("- code {}: {}\n", code, fmt::join(names, ", "));
  return text;
}

std::string notices_text(const Comparison& comparison, const ComparedTask& task, size_t t) {
  std::string text;
  for (size_t a = 0; a < task.arms.size(); ++a) {
    if (comparison.arms[t][a].left_out) continue;
    const auto& name = comparison.written.arms[a].name;
    const auto& arm = task.arms[a];
    if (!arm.missing.empty()) text += fmt::format("- {}: no statistics: {}\n", name, arm.missing);
    for (const auto& notice : arm.notices) text += fmt::format("- {}: {}\n", name, notice);
    for (const auto& [metric, compared] : arm.metrics)
      if (!compared.of_two_humps && compared.difference && compared.difference->bootstrap)
        text +=
            fmt::format("- {}: {}: bootstrap [{:+.4f}, {:+.4f}]\n", name, metric,
                        compared.difference->bootstrap->low, compared.difference->bootstrap->high);
  }
  for (const auto& notice : task.notices) text += fmt::format("- {}\n", notice);
  return text + codes_text(comparison, task);
}

}  // namespace

std::string notes_text(const Comparison& comparison, const std::vector<ChosenRate>& rates,
                       const ComparedTask& task, size_t t) {
  return measured_on_text(comparison, task, t) + tests_text(comparison, task, t) + "\n" +
         chosen_text(comparison, rates) + left_out_text(comparison, t) +
         notices_text(comparison, task, t);
}

}  // namespace headlab
