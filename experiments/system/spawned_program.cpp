#include "experiments/system/spawned_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/errors.h"
#include "experiments/files/regular_file.h"
#include "experiments/files/replacement_file.h"
#include "experiments/files/sha256.h"
#include "experiments/system/exec_words.h"
#include "experiments/system/signals.h"
#include "experiments/text/file_text.h"

namespace headlab {
namespace {

// What this process runs, whatever lies by now where it was started from: a build replaces the file
// and not what is running. In a child that has only been forked it is the same.
constexpr const char* kOwnFile = "/proc/self/exe";

constexpr std::array<std::string_view, 10> kOfSeveral{"RANK",
                                                      "WORLD_SIZE",
                                                      "LOCAL_RANK",
                                                      "MASTER_ADDR",
                                                      "MASTER_PORT",
                                                      "SLURM_STEP_ID",
                                                      "SLURM_PROCID",
                                                      "SLURM_LOCALID",
                                                      "SLURM_STEP_NUM_TASKS",
                                                      "TORCHELASTIC_USE_AGENT_STORE"};

bool is_of_several(std::string_view name) {
  return std::find(kOfSeveral.begin(), kOfSeveral.end(), name) != kOfSeveral.end();
}

// Only what is safe between fork and exec in a process of several threads.
[[noreturn]] void become_program(char** words, char** settings, int output, pid_t parent) {
  forget_stop_signals();  // till here they wait, for no thread of the child takes them
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);  // it ended before it could have been noticed
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execve(kOwnFile, words, settings);
  ::_exit(127);
}

}  // namespace

std::filesystem::path this_program() {
  std::error_code error;
  auto path = std::filesystem::read_symlink(kOwnFile, error).string();
  if (error) throw RunError("this program's own file cannot be found: " + error.message());
  constexpr std::string_view kGone = " (deleted)";
  if (path.ends_with(kGone) && !std::filesystem::exists(path, error))
    path.resize(path.size() - kGone.size());
  return path;
}

const std::string& program_digest() {
  static const std::string digest = sha256_of_file(kOwnFile);
  return digest;
}

std::filesystem::path copy_of_this_program(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  const auto path = folder / ("headlab-" + program_digest().substr(0, 8));
  std::error_code none;
  if (fs::file_size(path, none) == fs::file_size(kOwnFile) && !none) return path;
  replace_file(path, file_text(kOwnFile));
  std::error_code error;
  fs::permissions(path, fs::status(kOwnFile).permissions(), error);
  if (error) throw RunError(path.string() + ": cannot be made a program: " + error.message());
  return path;
}

SpawnedProgram::SpawnedProgram(const std::vector<std::string>& words,
                               const std::filesystem::path& output,
                               const std::map<std::string, std::string>& environment) {
  std::vector<std::string> line{this_program().string()};
  line.insert(line.end(), words.begin(), words.end());
  auto settings = environment_with(environment, is_of_several);
  const auto line_pointers = pointers_to(line), setting_pointers = pointers_to(settings);
  const int file = open_regular(output, O_WRONLY | O_CREAT | O_APPEND);
  if (file < 0) throw RunError(output.string() + ": cannot be written: " + std::strerror(errno));
  const pid_t parent = ::getpid();
  const SignalThread signals;  // no handler of ours swallows what is meant for the child
  pid_ = ::fork();
  if (pid_ == 0)
    become_program(const_cast<char**>(line_pointers.data()),
                   const_cast<char**>(setting_pointers.data()), file, parent);
  const int failed = errno;
  ::close(file);
  if (pid_ < 0) throw RunError(std::string("no process can be started: ") + std::strerror(failed));
  ::setpgid(pid_, pid_);  // whoever is first, it has its group before a signal goes to ours
}

SpawnedProgram::SpawnedProgram(SpawnedProgram&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), code_(other.code_) {}

SpawnedProgram::~SpawnedProgram() {
  if (pid_ <= 0 || code_) return;
  ::kill(pid_, SIGTERM);
  wait();
}

void SpawnedProgram::take(int status) {
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::optional<int> SpawnedProgram::ended() {
  int status = 0;
  if (!code_ && ::waitpid(pid_, &status, WNOHANG) == pid_) take(status);
  return code_;
}

int SpawnedProgram::wait() {
  int status = 0;
  while (!code_) {
    if (::waitpid(pid_, &status, 0) == pid_)
      take(status);
    else if (errno != EINTR)
      code_ = -SIGKILL;  // somebody else has waited for it
  }
  return *code_;
}

void SpawnedProgram::signal(int number) const {
  if (pid_ > 0 && !code_) ::kill(pid_, number);
}

}  // namespace headlab
