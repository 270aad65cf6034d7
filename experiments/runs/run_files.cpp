#include "experiments/runs/run_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <functional>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "experiments/files/json_text.h"
#include "experiments/files/regular_file.h"
#include "experiments/files/remove_key.h"
#include "experiments/files/replacement_file.h"
#include "experiments/files/sha256.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/system/child_process.h"
#include "experiments/system/host_name.h"
#include "experiments/system/output_file.h"
#include "experiments/text/file_text.h"
#include "experiments/text/utf8.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 5> kStateNames{"running", "finished", "stopped", "failed",
                                                      "diverged"};

void sort_keys(ConfigNode& node) {
  std::sort(node.entries.begin(), node.entries.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [key, value] : node.entries) sort_keys(value);
  for (ConfigNode& item : node.items) sort_keys(item);
}

// Sections that say nothing are as good as absent.
void remove_empty(ConfigNode& node) {
  for (auto& [key, value] : node.entries) remove_empty(value);
  std::erase_if(node.entries, [](const auto& entry) {
    const ConfigNode& value = entry.second;
    return value.kind == ConfigNode::Kind::kMapping && value.entries.empty();
  });
}

// Whether what is being handled is a limit of ours on looking at a file, which is no fault of a
// run.
bool handles_unfinished_child() {
  try {
    if (std::current_exception()) throw;
  } catch (const ChildUnfinished&) {
    return true;
  } catch (...) {  // a fault
  }
  return false;
}

std::string status_text(const RunStatus& status) {
  Json json{{"status", run_state_name(status.state)}, {"reason", status.reason}};
  if (status.state == RunState::kRunning) {
    json["pid"] = ::getpid();
    json["host"] = host_name();
  }
  json["updated_utc"] = utc_now();
  json["step"] = status.step;
  json["metrics"] = Json::object();
  for (const auto& [name, value] : status.metrics) json["metrics"][name] = metric_json(value);
  return json_text(json, 2) + '\n';
}

// The names in a directory, sorted, the first few of them, for a message.
std::string contents(const fs::path& directory) {
  constexpr size_t kMost = 8;
  std::vector<std::string> names;
  std::error_code error;
  for (auto entry = fs::directory_iterator(directory, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code none;
    names.push_back(entry->path().filename().string() + (entry->is_directory(none) ? "/" : ""));
  }
  if (error) return "it cannot be read: " + error.message();
  if (names.empty()) return "it is empty";
  std::sort(names.begin(), names.end());
  const size_t shown = std::min(names.size(), kMost);
  return fmt::format("it holds {}{}", fmt::join(names.begin(), names.begin() + shown, ", "),
                     names.size() > shown ? ", ..." : "");
}

fs::path without_slash(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

// Leftovers of a killed process. What cannot be removed does no harm.
void remove_temporaries(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code none;
  for (auto entry = fs::directory_iterator(directory, none);
       !none && entry != fs::directory_iterator(); entry.increment(none)) {
    if (entry->path().filename().string().starts_with(".tmp-")) found.push_back(entry->path());
  }
  for (const fs::path& path : found) fs::remove_all(path, none);
}

// Directories made on the way to a path, which go again unless they are kept.
class MadeDirectories {
 public:
  void make(const fs::path& path) {
    const fs::file_status there = fs::status(path);
    if (path.empty() || fs::is_directory(there)) return;
    if (fs::exists(there)) {
      throw fs::filesystem_error("", path, std::make_error_code(std::errc::not_a_directory));
    }
    make(path.parent_path());
    if (fs::create_directory(path)) made_.push_back(path);
  }
  void keep() {
    for (const fs::path& path : made_) sync_directory(path.parent_path());
    made_.clear();
  }
  ~MadeDirectories() {
    std::error_code none;  // those that hold something by now stay
    for (auto path = made_.rbegin(); path != made_.rend(); ++path) fs::remove(*path, none);
  }

 private:
  std::vector<fs::path> made_;
};

// A run in the making, under a name that the next process to make the same run finds and reuses.
class RunInTheMaking {
 public:
  explicit RunInTheMaking(const fs::path& target)
      : target_(target), path_(target.parent_path() / (".tmp-" + target.filename().string())) {
    std::error_code none;  // not into what a link of that name leads to
    if (fs::is_symlink(fs::symlink_status(path_, none))) fs::remove(path_, none);
    directories_.make(path_);
    lock_.emplace(path_);
  }
  ~RunInTheMaking() {
    if (!lock_) return;  // in place, or another process makes it
    std::error_code none;
    fs::remove_all(path_, none);
  }
  void write(const std::string& name, std::string_view text) { replace_file(path_ / name, text); }
  WriterLock put_in_place() {
    fs::rename(path_, target_);
    WriterLock lock = std::move(*lock_);
    lock_.reset();
    lock.renamed(target_);
    sync_directory(target_.parent_path());
    directories_.keep();
    return lock;
  }

 private:
  fs::path target_, path_;
  MadeDirectories directories_;
  std::optional<WriterLock> lock_;
};

// `clear_the_way` is called when the new run is whole, just before it gets its name.
WriterLock make_run(const fs::path& path, const std::string& config_yaml, const Json& manifest,
                    const std::string& data_json, const std::function<void()>& clear_the_way) {
  require_utf8(fs::absolute(path));
  require_no_control(fs::absolute(path).string(), "--out");
  const auto unmade = [&](const std::string& reason) {
    return fmt::format("{}: cannot be made: {}", path.string(), reason);
  };
  try {
    RunInTheMaking run(path);
    run.write("config.yaml", config_yaml);
    run.write("manifest.json", json_text(manifest, 2) + '\n');
    if (!data_json.empty()) run.write("data.json", data_json);
    run.write("status.json", status_text({}));
    clear_the_way();
    return run.put_in_place();
  } catch (const fs::filesystem_error& error) {
    throw RunError(unmade(error.code().message() + "; choose another place"));
  } catch (const TakenError& error) {
    throw TakenError(unmade(error.what()));
  } catch (const RunError& error) {
    throw RunError(unmade(error.what()));
  }
}

}  // namespace

std::string config_hash(ConfigNode experiment) {
  remove_key(experiment, "seed");
  remove_settings_of_machine(experiment);
  remove_empty(experiment);
  sort_keys(experiment);
  return sha256(to_yaml(experiment)).substr(0, 8);
}

void remove_settings_of_machine(ConfigNode& experiment) {
  ConfigNode* train = experiment.find("train");
  if (train == nullptr) return;
  remove_key(*train, "threads");
  remove_key(*train, "busy_cores");
}

fs::path run_path(const fs::path& out, const std::string& name, const std::string& hash,
                  int64_t seed) {
  return out / name / fmt::format("{}-s{}", hash, seed);
}

std::string run_state_name(RunState state) {
  return std::string(kStateNames.at(static_cast<size_t>(state)));
}

void require_utf8(const fs::path& path) {
  const auto name = path.string(), shown = replace_invalid_utf8(name);
  if (shown != name)
    throw RunError(shown + ": cannot be made: its name is not UTF-8; choose another place");
}

std::optional<RunStatus> read_status(const fs::path& run) {
  const auto json = parse_json<Json>(file_text(run / "status.json"));
  if (!json) return std::nullopt;
  try {
    const auto state = std::find(kStateNames.begin(), kStateNames.end(),
                                 json->at("status").get_ref<const std::string&>());
    if (state == kStateNames.end()) return std::nullopt;
    RunStatus status{.state = static_cast<RunState>(state - kStateNames.begin()),
                     .reason = json->at("reason").get<std::string>(),
                     .step = whole_number(json->at("step"))};
    for (const auto& [name, value] : json->at("metrics").items()) {
      status.metrics[name] = metric_value(value);
    }
    return status;
  } catch (const Json::exception&) {
  } catch (const std::invalid_argument&) {
  }
  return std::nullopt;
}

bool is_run(const fs::path& directory) {
  std::error_code none;
  return fs::is_regular_file(directory / "config.yaml", none);
}

FoundRun find_run(const fs::path& path) {
  std::error_code error;
  const fs::file_status there = fs::status(path, error);
  if (there.type() == fs::file_type::not_found) return {};
  const auto refusal = [&](const std::string& what) {
    return RunError(fmt::format("{}: {}", path.string(), what));
  };
  if (error) throw refusal("cannot be read: " + error.message());
  if (!fs::is_directory(there)) throw refusal("is a file where the run's directory should be");
  if (!is_run(path)) {
    if (fs::is_empty(path, error)) return {};
    throw refusal(fmt::format("is no run ({}); choose another place", contents(path)));
  }
  FoundRun found{.kind = FoundRun::Kind::kInterrupted, .status = read_status(path)};
  if (const std::optional<std::string> holder = WriterLock::holder(path)) {
    found.kind = FoundRun::Kind::kRunning;
    found.holder = *holder;
  } else if (found.status && found.status->state == RunState::kFinished) {
    found.kind = FoundRun::Kind::kFinished;
  }
  return found;
}

RunDirectory::RunDirectory(fs::path path, WriterLock lock, Json manifest)
    : path_(std::move(path)), lock_(std::move(lock)), manifest_(std::move(manifest)) {}

RunDirectory::~RunDirectory() {
  if (lock_.held() && std::uncaught_exceptions() > exceptions_)
    fail("an error, which the process has told");
}

RunDirectory RunDirectory::create(const fs::path& path, const std::string& config_yaml,
                                  const Json& manifest, const std::string& data_json) {
  const fs::path run = without_slash(path);
  // The rename would refuse too, but could not say why.
  const auto check = [&] {
    if (find_run(run).kind != FoundRun::Kind::kAbsent) {
      throw TakenError("a run is there already");
    }
  };
  return {run, make_run(run, config_yaml, manifest, data_json, check), manifest};
}

RunDirectory RunDirectory::replace(const fs::path& path, WriterLock lock,
                                   const std::string& config_yaml, const Json& manifest,
                                   const std::string& data_json) {
  const fs::path run = without_slash(path);
  const fs::path old = run.parent_path() / (".tmp-" + run.filename().string() + "-old");
  const auto move_away = [&] {
    fs::remove_all(old);
    fs::rename(run, old);
    lock.renamed(old);
  };
  RunDirectory replaced(run, make_run(run, config_yaml, manifest, data_json, move_away), manifest);
  std::error_code none;
  fs::remove_all(old, none);
  return replaced;
}

RunDirectory RunDirectory::resume(const fs::path& path, WriterLock lock, const Json& manifest,
                                  const std::string& data_json) {
  const fs::path run = without_slash(path);
  require_own_directory(run / "ckpt");
  const std::optional<RunStatus> stood = read_status(run);
  RunDirectory resumed(run, std::move(lock), continue_manifest(run, read_manifest(run), manifest));
  remove_temporaries(run);
  remove_temporaries(run / "ckpt");
  replace_file(run / "manifest.json", json_text(resumed.manifest_, 2) + '\n');
  if (!data_json.empty() && !fs::exists(run / "data.json"))
    replace_file(run / "data.json", data_json);
  resumed.running(stood ? stood->step : 0);
  return resumed;
}

void RunDirectory::running(int64_t step, const Metrics& metrics) {
  replace_file(path_ / "status.json", status_text({.step = step, .metrics = metrics}));
}

void RunDirectory::note(const std::string& key, Json value) { manifest_[key] = std::move(value); }

void RunDirectory::end(const RunStatus& status) {
  manifest_["status"] = run_state_name(status.state);
  manifest_["end_utc"] = utc_now();
  replace_file(path_ / "manifest.json", json_text(manifest_, 2) + '\n');
  replace_file(path_ / "status.json", status_text(status));
  ended_ = true;
}

void RunDirectory::fail(const std::string& reason) noexcept {
  if (ended_) return;
  try {
    // Without the forty frames that torch appends to what happened.
    const auto cause = reason.substr(0, reason.find("\nException raised from "));
    RunStatus status{.state = RunState::kFailed, .reason = cause};
    if (handles_unfinished_child()) {
      if (const auto stood = read_status(path_)) status.step = stood->step;
      status.state = RunState::kStopped;
    }
    end(status);
  } catch (const std::exception&) {  // the storage that fails here too; status.json says running
  }
}

LocatedRun locate_run(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);  // links to checkpoints and relative names too
  const auto refusal = [&](const std::string& what) {
    return RunError(fmt::format("{}: not a run: {}", path.string(), what));
  };
  if (error) throw refusal(error.message());
  if (!fs::is_directory(real)) throw refusal("it is a file; name the run's directory");
  if (is_run(real)) return {real, {}};
  const fs::path run = real.parent_path().parent_path();
  if (real.parent_path().filename() == "ckpt" && is_run(run)) return {run, real};
  std::error_code none;
  if (fs::exists(fs::symlink_status(real / "config.yaml", none)))
    throw refusal("its config.yaml is no regular file, nor a link to one");
  throw refusal(fmt::format("no config.yaml; {}", contents(real)));
}

}  // namespace headlab
