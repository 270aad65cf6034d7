#include "experiments/sweeps/sweep_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/errors.h"
#include "experiments/files/config_file.h"
#include "experiments/files/json_text.h"
#include "experiments/files/replacement_file.h"
#include "experiments/files/sha256.h"
#include "experiments/runs/initial_weights.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_identity.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/output_file.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

// The path as the caller would write it.
fs::path base_file(const ConfigNode& base, const fs::path& sweep) {
  return (sweep.parent_path() / base.text).lexically_normal();
}

ConfigNode config_of(const SweepPoint& point, const fs::path& sweep,
                     const std::vector<std::string>& overrides) {
  const auto base = load_experiment(base_file(point.base, sweep));
  ConfigNode tree;
  tree.place = base.place;
  for (const auto& [key, value] : point.settings)
    add_setting(tree, base, key, value, value.key_place());
  return override_config(merge_config(base, tree), overrides);
}

FrozenPoint freeze(const SweepPoint& point, bool several_bases, const fs::path& sweep,
                   const std::vector<std::string>& overrides, const fs::path& out) {
  std::vector<std::pair<std::string, ConfigNode>> settings;
  if (several_bases)
    settings.emplace_back("base", write_text(fs::path(point.base.text).stem().string()));
  settings.insert(settings.end(), point.settings.begin(), point.settings.end());
  return freeze_point(std::move(settings), config_of(point, sweep, overrides), out);
}

void require_apart(const std::vector<FrozenPoint>& points, const fs::path& file) {
  std::map<fs::path, size_t> first;
  PointProblems problems;
  for (size_t i = 0; i < points.size(); ++i)
    if (const auto [known, fresh] = first.emplace(points[i].run, i); !fresh)
      problems.add(fmt::format(
          "{}: points {} ({}) and {} ({}) are one run, {}; change the axes, or exclude one",
          file.string(), known->second + 1, points[known->second].label(), i + 1, points[i].label(),
          points[i].run.filename().string()));
  problems.raise();
}

std::string config_name(const FrozenPoint& point) {
  return fmt::format("configs/{}-{}.yaml", point.experiment.name, point.run.filename().string());
}

nlohmann::ordered_json json_of_node(const ConfigNode& node) {
  using Json = nlohmann::ordered_json;
  if (node.kind != ConfigNode::Kind::kScalar) return to_flow(node);
  const Json parsed = node.quoted ? Json() : Json::parse(node.text, nullptr, false);
  return parsed.is_number() || parsed.is_boolean() ? parsed : Json(node.text);
}

std::string points_table(const FrozenSweep& sweep, const fs::path& folder) {
  std::string text;
  for (const auto& point : sweep.points)
    text += fmt::format("{}\t{}\n", point.run.string(), (folder / config_name(point)).string());
  return text;
}

std::string points_json(const FrozenSweep& sweep) {
  auto points = nlohmann::ordered_json::array();
  for (const auto& point : sweep.points) {
    auto settings = nlohmann::ordered_json::object();
    for (const auto& [key, value] : point.settings) settings[key] = json_of_node(value);
    points.push_back({{"run", point.run.string()},
                      {"config", point.config.string()},
                      {"name", point.experiment.name},
                      {"seed", point.experiment.seed},
                      {"settings", settings}});
  }
  return json_text(nlohmann::ordered_json{{"sweep", sweep.name}, {"points", points}}, 2) + "\n";
}

}  // namespace

std::string FrozenPoint::label() const {
  std::vector<std::string> words;
  for (const auto& [key, value] : settings)
    words.push_back(key == "base" ? to_flow(value) : fmt::format("{}={}", key, to_flow(value)));
  return words.empty() ? experiment.name : fmt::format("{}", fmt::join(words, " "));
}

std::string written_text(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw ConfigError(file.string() + ": cannot open: is there such a file?");
  std::string text(kMaxConfigBytes + 1, '\0');  // one more than parsing accepts
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

void PointProblems::add(const std::string& lines) {
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);)
    if (seen_.insert(line).second) lines_.push_back(line);
}

void PointProblems::raise() const {
  constexpr size_t kMost = 100;
  if (lines_.empty()) return;
  const size_t shown = std::min(lines_.size(), kMost);
  auto all = fmt::format("{}", fmt::join(lines_.begin(), lines_.begin() + shown, "\n"));
  if (shown < lines_.size()) all += fmt::format("\nand {} more", lines_.size() - shown);
  throw ConfigError(all);
}

FrozenPoint freeze_point(std::vector<std::pair<std::string, ConfigNode>> settings,
                         const ConfigNode& config, const fs::path& out) {
  FrozenPoint frozen;
  frozen.settings = std::move(settings);
  read_config(frozen.experiment, config);
  resolve_init(frozen.experiment);
  frozen.yaml = to_yaml(write_block(frozen.experiment));
  frozen.hash = run_hash(frozen.experiment, out / frozen.experiment.name);
  frozen.run = run_path(out, frozen.experiment);
  return frozen;
}

fs::path folder_of_runs(const fs::path& out) {
  const auto folder = fs::absolute(out).lexically_normal();
  require_utf8(folder);
  require_no_control(folder.string(), "--out");
  return folder.has_filename() ? folder : folder.parent_path();
}

void place_sweep(FrozenSweep& sweep, const fs::path& folder) {
  sweep.folder = folder;
  for (auto& point : sweep.points) point.config = folder / config_name(point);
}

FrozenSweep resolve_sweep(const fs::path& file, const std::vector<std::string>& overrides,
                          const fs::path& out) {
  require_no_control(fs::absolute(file).string(), "sweep");
  const auto directory = fs::absolute(file).parent_path();
  const auto written = read_sweep(parse_config(written_text(file), file.string(), directory));
  FrozenSweep sweep{
      .folder = {}, .out = folder_of_runs(out), .name = file.stem().string(), .points = {}};
  PointProblems problems;
  for (const auto& point : points_of(written)) try {
      sweep.points.push_back(freeze(point, written.bases.size() > 1, file, overrides, sweep.out));
    } catch (const ConfigError& error) {
      problems.add(error.what());
    }
  problems.raise();
  require_apart(sweep.points, file);
  // The folder is named by the points, and lies in its own points.tsv: there without its path.
  const auto hash = sha256(points_table(sweep, "")).substr(0, 8);
  place_sweep(sweep, sweep.out / "sweeps" / fmt::format("{}-{}", sweep.name, hash));
  return sweep;
}

void write_points(const FrozenSweep& sweep) {
  try {
    for (const auto* inner : {"configs", "output"}) fs::create_directories(sweep.folder / inner);
  } catch (const fs::filesystem_error& error) {
    throw RunError(fmt::format("{}: cannot be made: {}; choose another --out",
                               sweep.folder.string(), error.code().message()));
  }
  for (const auto& point : sweep.points) replace_file(point.config, point.yaml);
  replace_file(sweep.folder / "points.json", points_json(sweep));
  replace_file(sweep.folder / "points.tsv", points_table(sweep, sweep.folder));
}

void write_sweep(const FrozenSweep& sweep, const fs::path& file) {
  write_points(sweep);
  replace_file(sweep.folder / "sweep.yaml", written_text(file));
}

}  // namespace headlab
