#include "experiments/runs/same_run.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "core/errors.h"
#include "experiments/files/config_file.h"
#include "experiments/runs/checkpoint_state.h"
#include "experiments/runs/resolved_settings.h"
#include "experiments/runs/run_code.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_identity.h"
#include "experiments/runs/run_machine.h"
#include "experiments/runs/run_manifest.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string value_text(const ConfigNode* node) {
  if (node == nullptr) return "not there";
  constexpr size_t kMost = 60;
  const auto text = to_flow(*node);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

void compare(const ConfigNode* then, const ConfigNode* now, const std::string& path,
             std::vector<std::string>& lines) {
  const auto is_mapping = [](const ConfigNode* node) {
    return node != nullptr && node->kind == ConfigNode::Kind::kMapping;
  };
  const auto is_file = [](const ConfigNode* node) { return node && !node->absolute.empty(); };
  if (is_mapping(then) && is_mapping(now)) {
    const auto below = [&](const std::string& key) {
      return path.empty() ? key : path + "." + key;
    };
    for (const auto& [key, value] : now->entries)
      compare(then->find(key), &value, below(key), lines);
    for (const auto& [key, value] : then->entries)
      if (now->find(key) == nullptr) compare(&value, nullptr, below(key), lines);
  } else if (!(is_file(then) && is_file(now)) && !(then && now && *then == *now)) {
    lines.push_back(fmt::format("{} was {}, is {}", path, value_text(then), value_text(now)));
  }
}

constexpr const char *kFrom = "from", *kWeights = "weights";  // in `tuning` of a manifest

// Of two `tuning` of manifests; weights are the same wherever they lie.
std::vector<std::string> options_that_differ(const Json& then, const Json& now) {
  std::vector<std::string> lines;
  const auto text = [](const Json& tuning, const std::string& name) {
    if (!tuning.contains(name)) return std::string("not given");
    const auto& value = tuning[name == kWeights ? kFrom : name];
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  auto names = then;
  names.update(now);
  for (const auto& [name, value] : names.items())
    if (name != kFrom && then.value(name, Json()) != now.value(name, Json()))
      lines.push_back(fmt::format("{} was {}, is {}", name, text(then, name), text(now, name)));
  return lines;
}

// Beside settings and device: data, and code of the kinds of heads.
std::vector<std::string> files_that_differ(const Json& then, const Json& now) {
  auto lines =
      data_that_differ(then.value("data", Json::array()), now.value("data", Json::array()));
  auto kinds = kinds_that_differ(then.value("code", Json()));
  lines.insert(lines.end(), std::make_move_iterator(kinds.begin()),
               std::make_move_iterator(kinds.end()));
  return lines;
}

// --resume RUN: whether it is of these settings, and `run` made it.
void require_named_run(const fs::path& path, const Experiment& experiment, const Json& then) {
  if (!made_by_run(then))
    throw ConfigError(
        fmt::format("--resume {}: is made from another run and not trained by 'run', "
                    "so it cannot be gone on with; 'init={}' begins with its weights",
                    path.string(), path.string()));
  const auto lines = settings_that_differ(path, experiment);
  if (!lines.empty())
    throw ConfigError(fmt::format("--resume {}: is a run of other settings: {}", path.string(),
                                  fmt::join(lines, "; ")));
}

// Whether it was computed on this type of device, in this precision.
void require_same_device(const std::string& named, const Experiment& experiment, const Json& then,
                         const Json& now) {
  const auto device = device_that_differs(then, now, experiment.train);
  if (!device.empty())
    throw ConfigError(
        fmt::format("{}: was computed otherwise: {}; {}; tag=WORD trains beside it; "
                    "--allow-device-change goes on here all the same, and the manifest says so",
                    named, fmt::join(device, "; "), device_remedy(then, now)));
}

// What a run keeps of itself is believed, so that nothing else may stand there.
void require_sound_state(const fs::path& run) {
  const auto refuse = [&](const char* file, const char* remedy) {
    throw RunError(
        fmt::format("{}: is damaged; move it away, and the run {}", (run / file).string(), remedy));
  };
  std::error_code none;
  if (fs::exists(run / "status.json", none) && !read_status(run))
    refuse("status.json", "goes on from its last checkpoint");
  if (fs::exists(run / "manifest.json", none) && !read_manifest(run).is_object())
    refuse("manifest.json", "goes on, without what it was made with");
}

}  // namespace

bool made_by_run(const Json& manifest) {
  return !manifest.is_object() || (!manifest.contains("pruned") &&
                                   !manifest.contains("converted") && !manifest.contains("tuning"));
}

Json kept_data(const fs::path& path) {
  const auto manifest = read_manifest(path);
  return manifest.is_object() ? manifest.value("data", Json::array()) : Json::array();
}

fs::path run_path(const fs::path& out, const Experiment& experiment) {
  const auto hash = run_hash(experiment, out / experiment.name);
  const auto path = fs::absolute(run_path(out, experiment.name, hash, experiment.seed));
  if (is_run(path)) return path;
  return run_of_other_name(path.parent_path(), hash, experiment.seed).value_or(path);
}

std::string same_on_other_data(const fs::path& path, const Experiment& experiment,
                               const Json& data) {
  if (is_run(path)) return "";
  const auto seed = fmt::format("-s{}", experiment.seed);
  std::error_code error;
  for (auto entry = fs::directory_iterator(path.parent_path(), error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const auto& run = entry->path();
    if (!run.filename().string().ends_with(seed) || !is_run(run)) continue;
    const auto other = data_that_differ(kept_data(run), data);
    if (!other.empty() && made_by_run(read_manifest(run)) &&
        settings_that_differ(run, experiment).empty())
      return fmt::format("{} has these settings and other data: {}", run.string(),
                         fmt::join(other, "; "));
  }
  return "";
}

std::vector<std::string> settings_that_differ(const fs::path& run, const Experiment& experiment) {
  Experiment before;
  try {
    read_config(before, load_config(run / "config.yaml"));
  } catch (const ConfigError& error) {
    return {std::string("its config is not one of this version: ") + error.what()};
  }
  auto one = resolved(before), other = resolved(experiment);
  auto then = write_block(one, Paths::kWritten);
  auto now = write_block(other, Paths::kWritten);
  remove_settings_of_machine(then);
  remove_settings_of_machine(now);
  std::vector<std::string> lines;
  compare(&then, &now, "", lines);
  return lines;
}

void require_same_run(const fs::path& path, const Experiment& experiment, const Json& now,
                      const ResumeFrom& from) {
  if (from.never || find_run(path).kind == FoundRun::Kind::kAbsent) return;
  require_sound_state(path);
  const auto manifest = read_manifest(path);
  if (!from.named.empty()) {
    require_named_run(path, experiment, manifest);
    if (!from.any_device)
      require_same_device("--resume " + path.string(), experiment, manifest, now);
    return;
  }
  auto lines = settings_that_differ(path, experiment);
  const auto add = [&](std::vector<std::string> more) {
    lines.insert(lines.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  };
  if (manifest.is_object()) {
    add(files_that_differ(manifest, now));
    if (lines.empty() && !from.any_device)
      require_same_device(path.string(), experiment, manifest, now);
  }
  if (!lines.empty())
    throw RunError(fmt::format(
        "{}: a run of this name, config and seed lies there, and it is not the same: {}; tag=WORD "
        "trains beside it, '--resume never' in its place, '--resume {}' goes on with it where only "
        "code differs",
        path.string(), fmt::join(lines, "; "), path.string()));
}

void require_same_tuning(const fs::path& path, const Experiment& experiment, const Json& now) {
  if (find_run(path).kind == FoundRun::Kind::kAbsent) return;
  require_sound_state(path);
  const auto manifest = read_manifest(path);
  const auto then = manifest.is_object() ? manifest.value("tuning", Json()) : Json();
  if (!then.is_object())
    throw RunError(path.string() + ": a run is there already; choose another place");
  auto lines = options_that_differ(then, now.at("tuning"));
  const auto add = [&](std::vector<std::string> more) {
    lines.insert(lines.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  };
  if (lines.empty()) add(settings_that_differ(path, experiment));
  add(files_that_differ(manifest, now));
  add(device_that_differs(manifest, now, experiment.train));
  if (!lines.empty())
    throw RunError(
        fmt::format("{}: a run is there already, and another command made it: {}; the command that "
                    "made it goes on with it, another --out makes this one beside it",
                    path.string(), fmt::join(lines, "; ")));
}

Json tuning_json(const std::string& command, const fs::path& checkpoint, const Json& options) {
  Json tuning{{"command", command}, {kFrom, checkpoint.string()}};
  try {
    tuning[kWeights] = read_state(checkpoint).at("files").at("model.safetensors").at("sha256");
  } catch (const DataError& error) {
    throw RunError(error.what());
  }
  tuning.update(options);
  return tuning;
}

Json with_numbers(Json report) {
  if (report.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (report.is_structured())
    for (auto& value : report) value = with_numbers(std::move(value));
  return report;
}

std::string code_since(const fs::path& path) {
  const auto manifest = read_manifest(path);
  if (!manifest.is_object()) return "";
  auto text = code_notice(manifest);
  if (rest_differs(manifest.value("code", Json())))
    text += fmt::format("{}the program beside its kinds of heads was another",
                        text.empty() ? "" : "; ");
  return text;
}

std::vector<std::string> changed_since(const fs::path& path, const Json& now) {
  std::vector<std::string> lines;
  if (auto code = code_since(path); !code.empty()) lines.push_back(std::move(code));
  const auto manifest = read_manifest(path);
  if (!manifest.is_object()) return lines;
  const auto then = manifest.value("threads", Json());
  if (then.is_number_integer() && then != now.at("threads"))
    lines.push_back(fmt::format(
        "it ran with {0} CPU threads and goes on with {1}: sums are taken in another order, so "
        "that its bits are not those of a run with {0} throughout",
        then.get<int64_t>(), now.at("threads").get<int64_t>()));
  if (auto machine = machine_since(manifest, now); !machine.empty())
    lines.push_back(std::move(machine));
  return lines;
}

}  // namespace headlab
