#include "experiments/comparison/comparison_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/errors.h"
#include "experiments/comparison/equal_terms.h"
#include "experiments/comparison/lengths.h"
#include "experiments/comparison/references.h"

namespace headlab {
namespace {

// Digests of what is not a kind of heads: arms differ in their kinds, and may in nothing else.
std::set<std::string> rests_of(const std::string& code) {
  std::set<std::string> rests;
  for (size_t at = 0; at < code.size();) {
    const size_t end = std::min(code.find('+', at), code.size());
    const auto one = code.substr(at, end - at);
    rests.insert(one.substr(std::min(one.find('-'), one.size())));
    at = end + 1;
  }
  return rests;
}

std::set<std::string> devices_of_rows(const std::vector<SweepRow>& rows) {
  std::set<std::string> devices;
  for (const auto& row : rows) devices.insert(row.device);
  return devices;
}

// Why rows are not one set of trainings to form statistics of; "": they are.
std::string what_is_missing(const std::vector<SweepRow>& rows, const std::string& loss) {
  std::vector<std::string> reasons;
  for (const auto& row : rows) {
    if (row.status.state != PointState::kFinished)
      reasons.push_back(fmt::format("seed {} is {}", row.seed, row.state_text()));
    else if (!row.final_metric(loss))
      reasons.push_back(fmt::format("seed {} has no finite {}", row.seed, loss));
  }
  if (reasons.empty() && std::any_of(rows.begin(), rows.end(), [&](const SweepRow& row) {
        return row.code != rows.front().code;
      }))
    reasons.emplace_back("its seeds were trained by different code; tag=WORD trains all anew");
  if (reasons.empty() && std::any_of(rows.begin(), rows.end(), [&](const SweepRow& row) {
        return row.device != rows.front().device;
      }))
    reasons.push_back(fmt::format(
        "its seeds were trained on different devices or in different precisions ({}); tag=WORD "
        "trains all anew",
        fmt::join(devices_of_rows(rows), ", ")));
  return fmt::format("{}", fmt::join(reasons, "; "));
}

void add_metrics(ComparedArm& arm, const std::vector<FinalMetric>& metrics, bool of_two_humps) {
  for (const auto& measure : metrics) {
    ComparedMetric metric{.values = {}, .of_two_humps = of_two_humps};
    for (const auto& row : arm.rows)
      if (const auto value = row.final_metric(measure.name)) metric.values.push_back(*value);
    if (metric.values.size() != arm.rows.size()) continue;
    metric.spread = spread_of(metric.values);
    arm.metrics[measure.name] = std::move(metric);
  }
}

void add_solved(ComparedArm& arm, const SolvedRule& rule) {
  const auto metric = arm.metrics.find(rule.metric);
  if (metric == arm.metrics.end()) return;
  auto& solved = arm.solved.emplace();
  for (const double value : metric->second.values) solved.solved.push_back(rule.met(value));
  for (const auto& row : arm.rows)
    solved.updates.push_back(updates_until(rule, read_metrics(row.run / "metrics.jsonl")));
  solved.median = median_time(solved.updates);
}

std::vector<Curve> curves_of(const ComparedArm& arm, double flops_per_token) {
  std::vector<Curve> curves;
  for (const auto& row : arm.rows)
    curves.push_back(curve_of(read_metrics(row.run / "metrics.jsonl"), flops_per_token));
  return curves;
}

// The mean over runs of a number that all of them have.
class MeanOfAll {
 public:
  void add(const std::optional<double>& value) {
    all_ = all_ && value;
    sum_ += value.value_or(0), ++count_;
  }
  std::optional<double> mean() const {
    return all_ && count_ > 0 ? std::optional(sum_ / static_cast<double>(count_)) : std::nullopt;
  }

 private:
  bool all_ = true;
  double sum_ = 0;
  int64_t count_ = 0;
};

void add_heads(ComparedArm& arm, const Survivors& survivors) {
  MeanOfAll entropy, logit, sink, surviving;
  for (const auto& row : arm.rows) {
    const auto columns = head_columns(row.run);
    entropy.add(columns.entropy), logit.add(columns.max_logit), sink.add(columns.first_token);
    const auto heads = survivors(row.run);
    surviving.add(heads ? std::optional(static_cast<double>(heads->kept)) : std::nullopt);
    if (heads) arm.built_heads = heads->built;
  }
  arm.heads = {entropy.mean(), logit.mean(), sink.mean()};
  arm.surviving = surviving.mean();
}

ComparedArm arm_of(const Comparison& comparison, size_t task, size_t arm, const ChosenRate& rate,
                   const Stage& whole, const StageEnd& end) {
  ComparedArm compared;
  const auto& sized = comparison.arms[task][arm];
  compared.missing = sized.takes_part() ? rate.failure : sized.cannot;
  if (!rate.rate || !compared.missing.empty()) return compared;
  for (const auto seed : comparison.written.seeds)
    compared.rows.push_back(end.row(whole, {task, arm, *rate.rate, seed}));
  compared.code = compared.rows.front().code;
  compared.missing =
      what_is_missing(compared.rows, compared_metrics(comparison, task).front().name);
  if (compared.missing.empty()) {
    const auto rule = solved_rule(comparison, task);
    add_metrics(compared, compared_metrics(comparison, task), rule.has_value());
    if (rule) add_solved(compared, *rule);
  }
  if (rate.at_edge)
    compared.notices.push_back(fmt::format(
        "its rate {} is at the edge of those that were tried: a better one may lie outside",
        *rate.rate));
  for (const auto& tried : rate.tried)
    if (!tried.lost.empty())
      compared.notices.push_back(fmt::format("rate {}: {}", tried.rate, tried.lost));
  if (!sized.unmatched.empty()) compared.notices.push_back(sized.unmatched);
  for (const auto& kind : kinds_without_host(sized))
    compared.notices.push_back(fmt::format(
        "'{}' heads keep their own initialisation: they do not support `init_weights: host`",
        kind));
  return compared;
}

// Differences to the baseline, each metric with its own correction: over the arms that have a place
// on the task, also those whose trainings failed.
void add_differences(const Comparison& comparison, size_t task, ComparedTask& compared) {
  const size_t base = comparison.written.baseline;
  std::vector<ComparedArm*> family;
  std::vector<bool> is_equal;  // on equal terms with the baseline
  for (size_t a = 0; a < compared.arms.size(); ++a) {
    const auto& sized = comparison.arms[task][a];
    if (a == base || !sized.takes_part()) continue;
    family.push_back(&compared.arms[a]);
    is_equal.push_back(sized.unequal.empty());
    if (!is_equal.back())
      family.back()->notices.push_back(fmt::format(
          "it differs from the baseline in {}; no difference is formed", sized.unequal));
  }
  for (const auto& metric : compared_metrics(comparison, task)) {
    const auto of = [&](ComparedArm& arm) {
      const auto found = arm.metrics.find(metric.name);
      return found == arm.metrics.end() ? nullptr : &found->second;
    };
    std::vector<ComparedMetric*> values;
    for (size_t a = 0; a < family.size(); ++a)
      values.push_back(is_equal[a] ? of(*family[a]) : nullptr);
    compare_family(of(compared.arms[base]), values);
    for (size_t a = 0; a < family.size(); ++a)
      if (values[a] && values[a]->difference && values[a]->difference->without_spread)
        family[a]->notices.push_back(
            fmt::format("{}: all differences are equal, so that no p can be formed", metric.name));
  }
  const auto solved = [](ComparedArm& arm) { return arm.solved ? &*arm.solved : nullptr; };
  std::vector<SolvedArm*> solvers;
  for (size_t a = 0; a < family.size(); ++a)
    solvers.push_back(is_equal[a] ? solved(*family[a]) : nullptr);
  compare_solved(solved(compared.arms[base]), solvers);
}

// Trainings of an arm by code that also differs from the baseline's beyond the kinds of heads, or
// on another device or in another precision, say nothing of the heads.
void require_one_computation(const Comparison& comparison, ComparedTask& compared) {
  const auto& baseline = compared.arms[comparison.written.baseline];
  for (auto& arm : compared.arms) {
    if (arm.rows.empty() || !arm.missing.empty() || !baseline.missing.empty()) continue;
    const auto &device = arm.rows[0].device, &of_baseline = baseline.rows[0].device;
    if (rests_of(arm.code) != rests_of(baseline.code))
      arm.missing = fmt::format(
          "it was trained by other code than the baseline ({} and {}); tag=WORD trains all anew",
          arm.code, baseline.code);
    else if (device != of_baseline)
      arm.missing =
          fmt::format("it was trained on {}, the baseline on {}; tag=WORD trains all anew", device,
                      of_baseline);
    if (!arm.missing.empty()) arm.metrics.clear(), arm.solved.reset();
  }
}

void add_curves(const Comparison& comparison, size_t task, ComparedTask& compared) {
  std::vector<std::vector<Curve>> curves;
  for (size_t a = 0; a < compared.arms.size(); ++a) {
    auto& arm = compared.arms[a];
    auto& of_arm = curves.emplace_back();
    if (arm.metrics.empty()) continue;
    of_arm = curves_of(arm, comparison.arms[task][a].flops_per_token);
    arm.curve = mean_curve(of_arm);
    MeanOfAll wall;
    for (const auto& row : arm.rows) wall.add(row.wall_s);
    arm.wall_s = wall.mean();
    if (!arm.curve.empty() && !std::isnan(arm.curve.back().flops))
      arm.flops = arm.curve.back().flops;
  }
  const size_t base = comparison.written.baseline;
  for (size_t a = 0; a < compared.arms.size(); ++a) {
    auto& arm = compared.arms[a];
    const bool unequal = !comparison.arms[task][a].unequal.empty();
    if (arm.metrics.empty() || curves[base].empty() || unequal) continue;
    if (!arm.curve.empty())  // both of validation, whatever the ends were measured on
      arm.reach = compute_for(compared.arms[base].curve, arm.curve.back().loss);
    MeanOfAll then;
    for (size_t s = 0; s < curves[a].size(); ++s)
      then.add(curves[base][s].empty() ? std::nullopt
                                       : loss_at(curves[a][s], curves[base][s].back().wall_s));
    arm.equal_time = then.mean();
  }
}

// Arms whose trainings are the same runs, or curves that begin on a part of what they end on.
void add_notices(const Comparison& comparison, ComparedTask& compared) {
  const auto& names = comparison.written.arms;
  for (size_t a = 0; a < compared.arms.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      if (!compared.arms[a].rows.empty() && !compared.arms[b].rows.empty() &&
          compared.arms[a].rows[0].run == compared.arms[b].rows[0].run) {
        compared.arms[a].notices.push_back(fmt::format(
            "it has the settings of '{}'; both names show the same runs", names[b].name));
        break;
      }
  const auto& curve = compared.arms[comparison.written.baseline].curve;
  if (!curve.empty() && curve.front().examples != curve.back().examples)
    compared.notices.push_back(
        fmt::format("points before the end are measured on the first {} validation examples, the "
                    "last point on {}; speedup and equal time use both",
                    curve.front().examples, curve.back().examples));
  const auto seeds = comparison.written.seeds.size();
  if (seeds < kFewestSeeds)
    compared.notices.push_back(
        fmt::format("{} seeds do not show how far seeds differ. No difference is starred. Train {} "
                    "seeds or more",
                    seeds, kFewestSeeds));
}

}  // namespace

const std::vector<FinalMetric>& compared_metrics(const Comparison& comparison, size_t task) {
  return comparison.baseline(task).metrics;
}

std::optional<SolvedRule> solved_rule(const Comparison& comparison, size_t task) {
  const auto& metrics = compared_metrics(comparison, task);
  const auto at = comparison.baseline(task).solved_at;
  if (!at || metrics.size() < 2) return std::nullopt;
  return SolvedRule{metrics[1].name, metrics[1].in_training, *at, metrics[1].higher_is_better};
}

size_t family_size(const Comparison& comparison, size_t task) {
  const auto& arms = comparison.arms[task];
  return std::count_if(arms.begin(), arms.end(),
                       [](const TaskArm& arm) { return arm.takes_part(); }) -
         1;
}

std::vector<ComparedTask> compare_arms(const Comparison& comparison, const ChosenRates& rates,
                                       const Stage& whole, const StageEnd& end,
                                       const Survivors& survivors) {
  std::vector<ComparedTask> tasks;
  for (size_t task = 0; task < rates.size(); ++task) {
    auto& compared = tasks.emplace_back();
    for (size_t arm = 0; arm < rates[task].size(); ++arm)
      compared.arms.push_back(arm_of(comparison, task, arm, rates[task][arm], whole, end));
    require_one_computation(comparison, compared);
    add_differences(comparison, task, compared);
    add_curves(comparison, task, compared);
    for (auto& arm : compared.arms)
      if (!arm.metrics.empty()) add_heads(arm, survivors);
    add_notices(comparison, compared);
    hold_against_references(comparison, task, compared);
    add_lengths(comparison, task, rates, whole, end, compared);
    const auto& baseline = compared.arms[comparison.written.baseline];
    const auto split = comparison.baseline(task).measured_on();
    for (const char* name : {"tokens", "examples", "whole_split"})
      if (const auto key = metric_name(split, name);
          !baseline.rows.empty() && baseline.rows[0].metrics.count(key))
        compared.measured_on[name] = baseline.rows[0].metrics.at(key);
  }
  return tasks;
}

}  // namespace headlab
