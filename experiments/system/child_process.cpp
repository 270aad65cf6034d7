#include "experiments/system/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "core/errors.h"

namespace headlab {
namespace {

constexpr rlim_t kSeconds = 10;               // of computing; four times as long in all
constexpr rlim_t kMemory = rlim_t{2} << 30;   // beyond what the parent has
constexpr rlim_t kGrowth = rlim_t{64} << 20;  // of the file
constexpr const char* kRemedy = "; take a copy from before";
constexpr char kAnswered = 'a', kRefused = 'r';  // the first byte of what the child says

void write_all(int descriptor, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(descriptor, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return;  // the parent then misses the first byte or the rest
    if (n > 0) done += n;
  }
}

std::string read_all(int descriptor) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t n = read(descriptor, buffer, sizeof buffer);
    if (n == 0 || (n < 0 && errno != EINTR)) return text;
    if (n > 0) text.append(buffer, n);
  }
}

// Bytes of memory of its own that this process has asked for so far.
rlim_t data_size() {
  rlim_t pages = 0;
  std::ifstream statm("/proc/self/statm");
  for (int column = 0; column < 6; ++column) statm >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

// What a damaged file must not make of the child: a core dump, a process without end, one that
// takes all memory, a file that fills the disk.
void limit_child(const std::string& file) {
  const auto limit = [](auto what, rlim_t soft, rlim_t hard) {
    rlimit now{};
    getrlimit(what, &now);  // root could raise them
    const rlimit both = {std::min(soft, now.rlim_cur), std::min(hard, now.rlim_max)};
    setrlimit(what, &both);
  };
  limit(RLIMIT_CPU, kSeconds, kSeconds + 1);  // a signal of its own, then the kill
  alarm(4 * kSeconds);
  limit(RLIMIT_CORE, 0, 0);
  if (const rlim_t data = data_size(); data > 0) limit(RLIMIT_DATA, data + kMemory, data + kMemory);
  std::error_code none;
  const rlim_t size = std::filesystem::file_size(file, none);
  if (!none) limit(RLIMIT_FSIZE, size + kGrowth, size + kGrowth);
}

// Runs the body -> what the parent is to read.
std::string answer_of(const std::string& file, const std::function<std::string()>& body) {
  const auto damaged = [&](const char* what) {
    return fmt::format("{}{}: is damaged: reading it ended in \"{}\"{}", kRefused, file, what,
                       kRemedy);
  };
  try {
    return kAnswered + body();
  } catch (const RunError& error) {  // the parent throws it
    return kRefused + std::string(error.what());
  } catch (const std::exception& error) {  // lengths without sense
    return damaged(error.what());
  }
}

[[noreturn]] void be_child(int out, const std::string& file,
                           const std::function<std::string()>& body) {
  // The parent's handlers would save checkpoints, or report a crash that is none of the parent's.
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    std::signal(signal, SIG_DFL);
  }
  limit_child(file);
  const int nowhere = open("/dev/null", O_WRONLY);
  if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);  // a crashing allocator prints
  write_all(out, answer_of(file, body));
  _exit(0);
}

}  // namespace

std::string in_child_process(const std::string& file, const std::function<std::string()>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw RunError(file + ": no pipe: " + std::strerror(errno));
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    be_child(ends[1], file, body);
  }
  const int failed = errno;
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    throw RunError(file + ": no process to read it in: " + std::strerror(failed));
  }
  const std::string answer = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    throw RunError(fmt::format("{}: is damaged: reading it ended in \"{}\"{}", file,
                               strsignal(WTERMSIG(status)), kRemedy));
  }
  if (WEXITSTATUS(status) != 0 || answer.empty()) {
    throw RunError(fmt::format("{}: is damaged: reading it ended with status {}{}", file,
                               WEXITSTATUS(status), kRemedy));
  }
  if (answer[0] == kRefused) throw RunError(answer.substr(1));
  return answer.substr(1);
}

}  // namespace headlab
