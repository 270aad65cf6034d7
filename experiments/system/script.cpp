#include "experiments/system/script.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/errors.h"
#include "experiments/system/exec_words.h"
#include "experiments/system/own_files.h"
#include "headlab_build.h"

namespace headlab {

namespace {

// Beside the command that pip installed; it says where that is.
std::filesystem::path installed_log_command() {
  const char* folder = std::getenv("HEADLAB_SCRIPTS");
  const auto path = std::filesystem::path(folder ? folder : "") / "headlab-log";
  std::error_code none;
  if (!folder || !std::filesystem::is_regular_file(path, none))
    throw RunError(
        "headlab-log is not found: it lies beside the command headlab that pip installed; start "
        "that, not the program inside the package");
  return path;
}

}  // namespace

std::filesystem::path log_command() {
  if (is_installed()) return installed_log_command();
  const std::string name = "log";
  auto path = std::filesystem::path(build::kSourceDir) / "scripts" / name;
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none))
    throw RunError(fmt::format(
        "{}: is not there; it lay in the sources that this program was built from", path.string()));
  return path;
}

int run_script(const std::filesystem::path& script, const std::vector<std::string>& words) {
  std::vector<std::string> line{script.string()};
  line.insert(line.end(), words.begin(), words.end());
  const auto pointers = pointers_to(line);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = -1;
  const int failed =
      ::posix_spawn(&child, script.c_str(), &actions, nullptr, pointers.data(), ::environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0)
    throw RunError(
        fmt::format("{}: cannot be started: {}", script.string(), std::strerror(failed)));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace headlab
