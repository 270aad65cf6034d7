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
#include "core/files/regular_file.h"

extern char** environ;

namespace headlab {
namespace {

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

constexpr std::array<int, 3> kStopSignals{SIGINT, SIGTERM, SIGUSR1};

std::vector<std::string> environment_with(const std::map<std::string, std::string>& set) {
  std::vector<std::string> settings;
  for (char** setting = environ; *setting != nullptr; ++setting) {
    const std::string_view text = *setting;
    const auto name = text.substr(0, text.find('='));
    if (std::find(kOfSeveral.begin(), kOfSeveral.end(), name) == kOfSeveral.end() &&
        !set.count(std::string(name)))
      settings.emplace_back(text);
  }
  for (const auto& [name, value] : set) settings.push_back(fmt::format("{}={}", name, value));
  return settings;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (auto& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

// Only what is safe between fork and exec in a process of several threads.
[[noreturn]] void become(const char* program, char** words, char** settings, int output,
                         pid_t parent, const sigset_t& mask) {
  for (const int number : kStopSignals) ::signal(number, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);  // it ended before it could have been noticed
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execve(program, words, settings);
  ::_exit(127);
}

}  // namespace

std::filesystem::path this_program() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw RunError("this program's own file cannot be found: " + error.message());
  return path;
}

SpawnedProgram::SpawnedProgram(const std::vector<std::string>& words,
                               const std::filesystem::path& output,
                               const std::map<std::string, std::string>& environment) {
  std::string program = this_program().string();
  std::vector<std::string> line{program};
  line.insert(line.end(), words.begin(), words.end());
  auto settings = environment_with(environment);
  const auto line_pointers = pointers_to(line), setting_pointers = pointers_to(settings);
  const int file = open_regular(output, O_WRONLY | O_CREAT | O_APPEND);
  if (file < 0) throw RunError(output.string() + ": cannot be written: " + std::strerror(errno));
  const pid_t parent = ::getpid();
  sigset_t held, before;  // a handler of ours must not swallow what is meant for the child
  ::sigemptyset(&held);
  for (const int number : kStopSignals) ::sigaddset(&held, number);
  ::pthread_sigmask(SIG_BLOCK, &held, &before);
  pid_ = ::fork();
  if (pid_ == 0)
    become(program.c_str(), const_cast<char**>(line_pointers.data()),
           const_cast<char**>(setting_pointers.data()), file, parent, before);
  const int failed = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
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
