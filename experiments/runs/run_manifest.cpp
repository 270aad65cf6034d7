#include "experiments/runs/run_manifest.h"

#include <H5public.h>
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "core/errors.h"
#include "experiments/system/sha256.h"
#include "headlab_build.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// The environment without git's own variables (which would point it at another repository), and
// with git kept from looking for one above `directory`.
std::vector<std::string> environment_for_git(const std::filesystem::path& directory) {
  std::vector<std::string> environment{"GIT_CEILING_DIRECTORIES=" +
                                       directory.parent_path().string()};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("GIT_")) environment.emplace_back(*variable);
  }
  return environment;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::string read_to_end(int descriptor) {
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t size = ::read(descriptor, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(size));
  }
}

// What git prints; none when it is absent or fails. No shell is involved.
std::optional<std::string> ask_git(const std::filesystem::path& directory,
                                   std::vector<std::string> arguments) {
  const std::vector<std::string> where{"git", "--no-optional-locks", "-C", directory.string()};
  arguments.insert(arguments.begin(), where.begin(), where.end());
  std::vector<std::string> environment = environment_for_git(directory);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, "git", &actions, nullptr, pointers_to(arguments).data(),
                                   pointers_to(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  const std::string output = error == 0 ? read_to_end(ends[0]) : "";
  ::close(ends[0]);
  if (error != 0) return std::nullopt;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
  return output;
}

// {commit, dirty}: files that git does not track do not make it dirty. Null outside a checkout.
Json git_state(const std::filesystem::path& source) {
  // One call for both: "<40 digits>" or "<40 digits>-dirty".
  std::optional<std::string> description =
      ask_git(source, {"describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"});
  if (!description) return nullptr;
  while (description->ends_with('\n')) description->pop_back();
  return {{"commit", description->substr(0, description->find('-'))},
          {"dirty", description->ends_with("-dirty")}};
}

Json cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
  }
  return nullptr;  // some processors do not say
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
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

Json data_json(const std::vector<std::filesystem::path>& files) {
  Json data = Json::array();
  for (const auto& file : files) {
    const std::string hash = sha256_of_file(file);
    data.push_back({{"path", std::filesystem::absolute(file).string()},
                    {"bytes", std::filesystem::file_size(file)},
                    {"sha256", hash}});
  }
  return data;
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

Json make_manifest(const ManifestEntries& entries) {
  return {{"status", "running"},
          {"start_utc", utc_now()},
          {"end_utc", nullptr},
          {"argv", command_line()},
          {"hostname", host_name()},
          {"scheduler", scheduler_ids()},
          {"git", git_state(build::kSourceDir)},
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
          {"data", data_json(entries.data_files)}};
}

Json continue_manifest(const Json& before, Json now) {
  if (!before.is_object()) return now;  // lost or damaged: nothing is known
  const Json empty = Json::array();
  const Json old_data = before.value("data", empty), new_data = now.value("data", empty);
  for (size_t i = 0; i < old_data.size() && i < new_data.size(); ++i) {
    if (old_data[i].value("sha256", "") == new_data[i].value("sha256", "")) continue;
    throw RunError(
        fmt::format("{}: has changed since the run began; bring back the file, or start anew with "
                    "--resume never",
                    new_data[i].value("path", "")));
  }
  Json previous = before.value("previous", empty), last = before;
  last.erase("previous");
  previous.push_back(std::move(last));
  now["previous"] = std::move(previous);
  return now;
}

}  // namespace headlab
