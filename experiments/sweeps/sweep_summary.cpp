#include "experiments/sweeps/sweep_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/errors.h"
#include "experiments/files/sha256.h"
#include "experiments/inference/evaluate.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_machine.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// Digests of the kinds of heads and of the rest of the program, eight digits each, of one session.
std::string digests_of(const Json& manifest) {
  const auto code = manifest.is_object() ? manifest.value("code", Json()) : Json();
  if (!code.is_object() || !code.contains("kinds") || !code.contains("rest")) return "";
  const auto rest = code["rest"].is_string() ? code["rest"].get<std::string>() : "";
  return sha256(code["kinds"].dump()).substr(0, 8) + "-" + rest.substr(0, 8);
}

// Of all sessions, each once, in their order.
std::string code_of(const Json& manifest) {
  std::vector<std::string> codes;
  const auto add = [&](const Json& session) {
    const auto code = digests_of(session);
    if (!code.empty() && std::find(codes.begin(), codes.end(), code) == codes.end())
      codes.push_back(code);
  };
  if (manifest.is_object() && manifest.contains("previous"))
    for (const auto& session : manifest["previous"]) add(session);
  add(manifest);
  return fmt::format("{}", fmt::join(codes, "+"));
}

std::string text_at(const Json& manifest, const char* place) {
  const Json::json_pointer at(place);
  if (!manifest.is_object() || !manifest.contains(at) || !manifest[at].is_string()) return "";
  return manifest[at].get<std::string>();
}

std::optional<double> wall_of(const std::filesystem::path& run) {
  try {
    const auto rows = read_metrics(run / "metrics.jsonl");
    return rows.empty() ? std::nullopt : std::optional(rows.back().wall_s);
  } catch (const RunError&) {  // none yet, or damaged
    return std::nullopt;
  }
}

SweepRow row_of(const FrozenPoint& point, const PointStatus& status) {
  const auto manifest = read_manifest(point.run);
  SweepRow row{.group = {},
               .name = point.experiment.name,
               .label = point.label(),
               .run = point.run,
               .seed = point.experiment.seed,
               .step = 0,
               .status = status,
               .metrics = {},
               .wall_s = wall_of(point.run),
               .code = code_of(manifest),
               .device = devices_of(manifest, point.experiment.train),
               .commit = text_at(manifest, "/git/commit"),
               .machine = text_at(manifest, "/cpu")};
  std::vector<std::string> words;
  for (const auto& [key, value] : point.settings)
    if (key != "seed") words.push_back((key == "base" ? "" : key + "=") + to_flow(value));
  row.group = words.empty() ? row.name : fmt::format("{}", fmt::join(words, " "));
  if (const auto written = read_status(point.run)) {
    row.step = written->step;
    row.metrics = written->metrics;
  }
  return row;
}

// What is not averaged, as several values of `of` stand in one group.
void add_mixed(const std::vector<SweepMean>& means, std::string SweepMean::*of, const char* what,
               std::vector<std::string>& notices) {
  std::map<std::string, std::vector<std::string>> values;
  for (const auto& mean : means) {
    auto& known = values[mean.group];
    if (std::find(known.begin(), known.end(), mean.*of) == known.end()) known.push_back(mean.*of);
  }
  for (const auto& [group, several] : values)
    if (several.size() > 1)
      notices.push_back(fmt::format(
          "{}: its seeds were trained {} ({}), so they are not averaged together; tag=WORD trains "
          "all points anew beside them",
          group, what, fmt::join(several, ", ")));
}

}  // namespace

bool is_result(const std::string& metric) {
  for (const auto split : {Split::kValidation, Split::kTest}) {
    const auto of_split = metric_name(split, "");
    if (!metric.starts_with(of_split)) continue;
    const auto name = metric.substr(of_split.size());
    return name != "step" && !says_what_was_measured(name);
  }
  return true;
}

std::string point_state_name(PointState state) {
  constexpr std::array<const char*, 8> kNames{"waiting", "locked",    "running",  "finished",
                                              "stopped", "elsewhere", "given up", "failed"};
  return kNames.at(static_cast<size_t>(state));
}

std::string SweepRow::state_text() const {
  return point_state_name(status.state) + (status.reason.empty() ? "" : ": " + status.reason);
}

std::optional<double> SweepRow::final_metric(const std::string& name) const {
  const auto found = metrics.find(name);
  if (found == metrics.end() || !std::isfinite(found->second)) return std::nullopt;
  return found->second;
}

std::vector<SweepMean> means_of(const std::vector<SweepRow>& rows) {
  std::vector<SweepMean> means;
  std::vector<std::map<std::string, std::vector<double>>> values;
  for (const auto& row : rows) {
    if (row.status.state != PointState::kFinished) continue;
    auto mean = std::find_if(means.begin(), means.end(), [&](const SweepMean& one) {
      return one.group == row.group && one.code == row.code && one.device == row.device;
    });
    if (mean == means.end()) {
      mean = means.insert(means.end(), SweepMean());
      mean->group = row.group, mean->name = row.name;
      mean->code = row.code, mean->device = row.device;
      values.emplace_back();
    }
    auto& of_mean = values[static_cast<size_t>(mean - means.begin())];
    mean->seeds.push_back(row.seed);
    for (const auto& [name, value] : row.metrics)
      if (is_result(name)) of_mean[name].push_back(value);
    if (row.wall_s) of_mean["wall_s"].push_back(*row.wall_s);
  }
  for (size_t i = 0; i < means.size(); ++i) {
    for (const auto& [name, numbers] : values[i]) means[i].metrics[name] = spread_of(numbers);
    means[i].asked = std::count_if(
        rows.begin(), rows.end(), [&](const SweepRow& row) { return row.group == means[i].group; });
  }
  return means;
}

std::vector<std::string> SweepSummary::devices() const {
  std::vector<std::string> all;
  for (const auto& row : rows)
    if (!row.device.empty() && std::find(all.begin(), all.end(), row.device) == all.end())
      all.push_back(row.device);
  return all;
}

SweepSummary summary_of(const FrozenSweep& sweep, const std::vector<PointStatus>& points) {
  SweepSummary summary;
  for (size_t i = 0; i < points.size(); ++i)
    summary.rows.push_back(row_of(sweep.points[i], points[i]));
  summary.means = means_of(summary.rows);
  add_mixed(summary.means, &SweepMean::code, "by different code", summary.notices);
  add_mixed(summary.means, &SweepMean::device, "on different devices or in different precisions",
            summary.notices);
  return summary;
}

}  // namespace headlab
