// The report of a comparison as JSON, and its files.
#include "experiments/comparison/comparison_report.h"

#include "experiments/comparison/lengths.h"
#include "experiments/comparison/references.h"
#include "experiments/files/json_text.h"
#include "experiments/files/replacement_file.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

Json number_or_null(const std::optional<double>& value) {
  return value ? metric_json(*value) : Json();
}

Json interval_json(const std::optional<Interval>& interval) {
  return interval ? Json{interval->low, interval->high} : Json();
}

Json difference_json(const ComparedMetric& metric) {
  if (!metric.difference) return {};
  const auto& difference = *metric.difference;
  return {{"values", difference.differences},
          {"mean", difference.mean},
          {"std", number_or_null(difference.deviation)},
          {"interval", interval_json(difference.interval)},
          {"bootstrap", interval_json(difference.bootstrap)},
          {"p", number_or_null(difference.p)},
          {"p_holm", number_or_null(metric.corrected)},
          {"reported", metric.reported()},
          {"tellable", number_or_null(metric.tellable)},
          {"without_spread", difference.without_spread}};
}

Json metrics_json(const ComparedArm& arm) {
  Json metrics = Json::object();
  for (const auto& [name, metric] : arm.metrics)
    metrics[name] = {{"values", metric.values},
                     {"mean", metric.spread.mean},
                     {"std", number_or_null(metric.spread.deviation)},
                     {"n", metric.spread.n},
                     {"difference", difference_json(metric)}};
  return metrics;
}

Json test_json(const std::optional<ComparedTest>& test) {
  if (!test) return {};
  return {
      {"p", test->p}, {"p_holm", number_or_null(test->corrected)}, {"reported", test->reported()}};
}

Json solved_json(const std::optional<SolvedArm>& arm) {
  if (!arm) return {};
  Json updates = Json::array();
  for (const auto& one : arm->updates)
    updates.push_back(one.happened ? Json(static_cast<int64_t>(one.time)) : Json());
  return {{"seeds", arm->solved},
          {"count", arm->count()},
          {"of", arm->solved.size()},
          {"fisher", test_json(arm->share)},
          {"updates", updates},
          {"median", number_or_null(arm->median)},
          {"log_rank", test_json(arm->sooner)}};
}

// By what arms are compared, and what the seeds could tell at best.
Json statistics_json(const Comparison& comparison, size_t task) {
  Json metrics = Json::array();
  for (const auto& metric : compared_metrics(comparison, task))
    metrics.push_back({{"name", metric.name},
                       {"units", metric.units},
                       {"better", metric.higher_is_better ? "higher" : "lower"}});
  Json solved;
  if (const auto rule = solved_rule(comparison, task))
    solved = {{"metric", rule->metric}, {"at", rule->at}};
  return {{"metrics", metrics},
          {"solved", solved},
          {"arms", family_size(comparison, task)},
          {"strictest_p", strictest_alpha(family_size(comparison, task))},
          {"power", kPower}};
}

Json curve_json(const Curve& curve) {
  Json points = Json::array();
  for (const auto& point : curve)
    points.push_back({{"step", point.step},
                      {"flops", point.flops},
                      {"wall_s", point.wall_s},
                      {validation_loss_name(), point.loss},
                      {"interval", interval_json(point.spread)},
                      {"examples", point.examples}});
  return points;
}

Json tried_json(const ChosenRate::Tried& one) {
  return {{"rate", one.rate},
          {validation_loss_name(), number_or_null(one.loss)},
          {"seeds", one.seeds},
          {"lost", one.lost}};
}

Json rate_json(const ChosenRate& rate) {
  Json tried = Json::array();
  for (const auto& one : rate.tried) tried.push_back(tried_json(one));
  return {{"chosen", number_or_null(rate.rate)},
          {"at_edge", rate.at_edge},
          {"runner_up", rate.runner_up ? tried_json(*rate.runner_up) : Json()},
          {"tried", tried}};
}

Json search_json(const ComparisonTask& task) {
  if (!task.search) return {};
  return {
      {"from", task.search->from}, {"factor", task.search->factor}, {"most", task.search->most}};
}

// A bound beside the factor: "at" it, "above" it where the baseline's curve ends before, "below" it
// where it begins lower.
Json speedup_json(const ComparedArm& arm) {
  const auto speedup = arm.speedup();
  if (!speedup) return {};
  const char* bound = arm.reach.bound == Reach::kAbove   ? "above"
                      : arm.reach.bound == Reach::kBelow ? "below"
                                                         : "at";
  return {{"factor", *speedup}, {"bound", bound}};
}

Json heads_json(const ComparedArm& arm) {
  Json heads{{"entropy", number_or_null(arm.heads.entropy)},
             {"max_logit", number_or_null(arm.heads.max_logit)},
             {"first_token", number_or_null(arm.heads.first_token)}};
  heads["surviving"] = number_or_null(arm.surviving);
  heads["built"] = arm.surviving ? Json(arm.built_heads) : Json();
  return heads;
}

Json arm_json(const std::string& name, const TaskArm& sized, const ChosenRate& rate,
              const ComparedArm& arm) {
  Json object{{"name", name},
              {"state", !sized.takes_part()    ? "impossible"
                        : !arm.missing.empty() ? "incomplete"
                                               : "compared"},
              {"reason", arm.missing}};
  if (!sized.takes_part()) return object;
  object.update({{"parameters", sized.parameters},
                 {"excess", sized.excess},
                 {"d_ff", sized.hidden_width()},
                 {"head_dim", sized.head_dim()},
                 {"adapted", sized.adapted.has_value()},
                 {"unmatched", sized.unmatched},
                 {"flops_per_token", sized.flops_per_token},
                 {"steps", sized.steps},
                 {"rate", rate_json(rate)},
                 {"code", arm.code},
                 {"metrics", metrics_json(arm)},
                 {"lengths", lengths_json(arm, sized.metrics.front().name)},
                 {"solved", solved_json(arm.solved)},
                 {"flops", number_or_null(arm.flops)},
                 {"wall_s", number_or_null(arm.wall_s)},
                 {"effective_speedup", speedup_json(arm)},
                 {"equal_time", {{validation_loss_name(), number_or_null(arm.equal_time)}}},
                 {"heads", heads_json(arm)},
                 {"above_chance", arm.above_chance ? Json(*arm.above_chance) : Json()},
                 {"notices", arm.notices},
                 {"curve", curve_json(arm.curve)},
                 {"runs", runs_json(arm.rows)}});
  return object;
}

}  // namespace

Json runs_json(const std::vector<SweepRow>& rows) {
  Json runs = Json::array();
  for (const auto& row : rows)
    runs.push_back({{"seed", row.seed},
                    {"run", row.run.string()},
                    {"status", point_state_name(row.status.state)},
                    {"reason", row.status.reason},
                    {"wall_s", number_or_null(row.wall_s)},
                    {"code", row.code},
                    {"commit", row.commit},
                    {"device", row.device},
                    {"machine", row.machine}});
  return runs;
}

Json comparison_json(const Comparison& comparison, const ChosenRates& rates,
                     const std::vector<ComparedTask>& tasks) {
  const auto& written = comparison.written;
  Json object{{"comparison", comparison.folder.string()},
              {"baseline", written.arms[written.baseline].name},
              {"seeds", written.seeds},
              {"choose_seeds", written.choose_seeds},
              {"tasks", Json::array()}};
  for (size_t t = 0; t < tasks.size(); ++t) {
    Json measured{{"split", split_name(comparison.baseline(t).measured_on())}};
    for (const auto& [name, value] : tasks[t].measured_on) measured[name] = value;
    Json arms = Json::array();
    for (size_t a = 0; a < tasks[t].arms.size(); ++a)
      if (!comparison.arms[t][a].left_out)
        arms.push_back(
            arm_json(written.arms[a].name, comparison.arms[t][a], rates[t][a], tasks[t].arms[a]));
    object["tasks"].push_back({{"name", written.tasks[t].name},
                               {"config", written.tasks[t].base.text},
                               {"rates", written.tasks[t].rates},
                               {"search", search_json(written.tasks[t])},
                               {"choose_at", written.tasks[t].choose_at},
                               {"match", match_name(written.tasks[t].match)},
                               {"measured_on", measured},
                               {"statistics", statistics_json(comparison, t)},
                               {"references", references_of_task_json(tasks[t].references)},
                               {"settled", settled_json(tasks[t])},
                               {"notices", tasks[t].notices},
                               {"arms", arms}});
  }
  return object;
}

void write_comparison(const Comparison& comparison, const Json& object, const std::string& text,
                      const std::vector<TaskTable>& tables) {
  replace_file(comparison.folder / "compare.json", json_text(object, 2) + "\n");
  replace_file(comparison.folder / "compare.md", text);
  replace_file(comparison.folder / "compare.csv", comparison_csv(object));
  replace_file(comparison.folder / "compare.tex", comparison_latex(object, tables));
}

}  // namespace headlab
