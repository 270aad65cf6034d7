#include "experiments/runs/run_manifest.h"

#include <H5public.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <system_error>

#include "core/errors.h"
#include "core/files/json_text.h"
#include "experiments/runs/run_code.h"
#include "experiments/system/file_text.h"
#include "experiments/system/host_name.h"
#include "experiments/system/sha256.h"
#include "headlab_build.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

Json cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
  }
  return nullptr;  // some processors do not say
}

Json scheduler_ids() {
  Json ids = Json::object();
  for (const char* name :
       {"SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_CLUSTER_NAME", "SLURM_ARRAY_JOB_ID",
        "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "PBS_JOBID", "PBS_ARRAY_INDEX", "LSB_JOBID",
        "LSB_JOBINDEX", "JOB_ID", "SGE_TASK_ID", "PARALLEL_SEQ"}) {
    if (const char* value = std::getenv(name)) ids[name] = value;
  }
  return ids;
}

// Of entries that are there; others are as good as absent.
bool is_sound(const Json& manifest) {
  const auto all = [](const Json& list, const auto& holds) {
    return list.is_array() && std::all_of(list.begin(), list.end(), holds);
  };
  const auto holds = [&](const char* key, const auto& condition) {
    const auto found = manifest.find(key);
    return found == manifest.end() || condition(*found);
  };
  const auto is_file = [](const Json& file) {
    return file.is_object() && file.value("path", Json()).is_string() &&
           file.value("sha256", Json()).is_string();
  };
  const auto is_text = [](const Json& value) { return value.is_string(); };
  const auto is_part = [](const Json& value) { return value.is_null() || value.is_object(); };
  return manifest.is_object() &&
         holds("data", [&](const Json& list) { return all(list, is_file); }) &&
         holds("previous", [&](const Json& list) { return all(list, is_sound); }) &&
         holds("parent", [](const Json& value) { return value.is_null() || is_sound(value); }) &&
         holds("run_id", is_text) && holds("run", is_text) && holds("code", is_part) &&
         holds("git", is_part);
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

std::string hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

std::string utc_now() {
  return fmt::format(
      "{:%FT%TZ}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
}

std::vector<std::string>& command_line() {
  static std::vector<std::string> words;
  return words;
}

Json data_json(const std::vector<std::filesystem::path>& files, const Json& known) {
  namespace fs = std::filesystem;
  Json data = Json::array();
  for (const auto& file : files) {
    std::error_code error;
    const auto modified = std::chrono::file_clock::to_sys(fs::last_write_time(file, error));
    Json entry{{"path", fs::absolute(file).string()},
               {"bytes", fs::file_size(file, error)},
               {"modified_ns",
                std::chrono::duration_cast<std::chrono::nanoseconds>(modified.time_since_epoch())
                    .count()}};
    std::string hash;
    for (const auto& other : known)
      if (!error && other.value("path", "") == entry.value("path", "") &&
          other.value("bytes", Json()) == entry["bytes"] &&
          other.value("modified_ns", Json()) == entry["modified_ns"])
        hash = other.value("sha256", "");
    entry["sha256"] = hash.empty() ? sha256_of_file(file) : hash;
    data.push_back(std::move(entry));
  }
  return data;
}

std::vector<std::string> data_that_differ(const Json& then, const Json& now) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < then.size() && i < now.size(); ++i)
    if (then[i].value("sha256", "") != now[i].value("sha256", ""))
      lines.push_back(now[i].value("path", "") + " was another");
  if (then.size() != now.size())
    lines.push_back(fmt::format("it had {} data files, now there are {}", then.size(), now.size()));
  return lines;
}

Json make_manifest(const ManifestEntries& entries) {
  return {{"status", "running"},
          {"start_utc", utc_now()},
          {"end_utc", nullptr},
          {"argv", command_line()},
          {"hostname", host_name()},
          {"scheduler", scheduler_ids()},
          {"git", git_json()},
          {"code", entries.code},
          {"versions",
           {{"headlab", build::kVersion},
            {"torch", entries.torch},
            {"cuda", text_or_null(entries.cuda)},
            {"hdf5", hdf5_version()},
            {"compiler", build::kCompiler}}},
          {"cpu", cpu_name()},
          {"gpus", entries.gpus},
          {"threads", entries.threads},
          {"seeds", {{"seed", entries.seed}}},
          {"data", entries.data}};
}

Json read_manifest(const std::filesystem::path& run) {
  const auto manifest = parse_json<Json>(file_text(run / "manifest.json"));
  return manifest && is_sound(*manifest) ? *manifest : Json();
}

Json continue_manifest(const std::filesystem::path& run, const Json& before, Json now) {
  if (!before.is_object()) return now;  // lost or damaged: nothing is known
  const Json empty = Json::array();
  const Json old_data = before.value("data", empty), new_data = now.value("data", empty);
  if (const auto changed = data_that_differ(old_data, new_data); !changed.empty())
    throw RunError(
        fmt::format("{}: its data have changed since it began: {}; bring them back, or "
                    "start anew with --resume never",
                    run.string(), fmt::join(changed, ", ")));
  Json previous = before.value("previous", empty), last = before;
  last.erase("previous");
  previous.push_back(std::move(last));
  now["previous"] = std::move(previous);
  now["run_id"] = before.value("run_id", run.filename().string());
  return now;
}

}  // namespace headlab
