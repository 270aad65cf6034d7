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
#include "experiments/files/file_stamp.h"
#include "experiments/files/json_text.h"
#include "experiments/files/sha256.h"
#include "experiments/runs/run_code.h"
#include "experiments/system/host_name.h"
#include "experiments/system/spawned_program.h"
#include "experiments/text/file_text.h"
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

Json stamp_json(const std::filesystem::path& file, const FileStamp& stamp) {
  return {{"path", std::filesystem::absolute(file).string()},
          {"bytes", stamp.bytes},
          {"modified_ns", stamp.modified_ns},
          {"changed_ns", stamp.changed_ns},
          {"inode", stamp.inode}};
}

Json without_digest(Json entry) {
  entry.erase("sha256");
  return entry;
}

// The entry of `files` whose file is as it is there; null: there is none.
const Json* entry_of(const Json& stamp, const Json& files) {
  for (const auto& entry : files)
    if (entry.value("sha256", Json()).is_string() && without_digest(entry) == stamp) return &entry;
  return nullptr;
}

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

Json file_json(const std::filesystem::path& file, const Json& known) {
  const auto stamp = stamp_of(file);
  auto entry = stamp_json(file, stamp);
  if (const auto* found = entry_of(entry, known)) return *found;
  if (const auto digest = digest_read(stamp)) {
    entry["sha256"] = *digest;
    return entry;
  }
  const bool settled = is_settled(stamp);
  const auto digest = sha256_of_file(file);
  entry["sha256"] = digest;
  if (settled && stamp_of(file) == stamp)
    remember_digest(stamp, digest);
  else
    entry.erase("changed_ns");  // not to be known again by its times
  return entry;
}

Json data_json(const std::vector<std::filesystem::path>& files, const Json& known) {
  Json data = Json::array();
  for (const auto& file : files) data.push_back(file_json(file, known));
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
          {"program", program_digest()},
          {"versions",
           {{"headlab", build::kVersion},
            {"torch", entries.torch},
            {"cuda", text_or_null(entries.cuda)},
            {"hdf5", hdf5_version()},
            {"compiler", build::kCompiler}}},
          {"device", entries.device},
          {"precision", entries.precision},
          {"cpu", cpu_name()},
          {"cpu_capability", text_or_null(entries.cpu_capability)},
          {"isa", text_or_null(entries.isa)},
          {"gpus", entries.gpus},
          {"threads", entries.threads},
          {"seeds", {{"seed", entries.seed}}},
          {"data", entries.data}};
}

Json read_manifest(const std::filesystem::path& run) {
  const auto manifest = parse_json<Json>(file_text(run / "manifest.json"));
  return manifest && is_sound(*manifest) ? *manifest : Json();
}

std::optional<int64_t> steps_of(const Json& manifest) {
  if (!manifest.is_object()) return std::nullopt;
  const auto steps = manifest.find("steps");
  if (steps == manifest.end() || !steps->is_number_integer()) return std::nullopt;
  return steps->get<int64_t>();
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
