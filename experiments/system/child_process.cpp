#include "experiments/system/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>

#include "core/errors.h"

namespace headlab {
namespace {

constexpr rlim_t kSeconds = 10;                  // of computing; four times as long in all
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

[[noreturn]] void be_child(int out, const std::function<std::string()>& body) {
  // The parent's handlers would save checkpoints, or report a crash that is none of the parent's.
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    std::signal(signal, SIG_DFL);
  }
  const rlimit limit = {kSeconds, kSeconds + 1};  // a signal of its own, then the kill
  setrlimit(RLIMIT_CPU, &limit);
  alarm(4 * kSeconds);
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const int nowhere = open("/dev/null", O_WRONLY);
  if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);  // a crashing allocator prints
  std::string answer;
  try {
    answer = kAnswered + body();
  } catch (const std::exception& error) {  // the parent throws it
    answer = kRefused + std::string(error.what());
  }
  write_all(out, answer);
  _exit(0);
}

}  // namespace

std::string in_child_process(const std::string& file, const std::function<std::string()>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw RunError(file + ": no pipe: " + std::strerror(errno));
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    be_child(ends[1], body);
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
    throw RunError(fmt::format("{}: is damaged: reading it ended in \"{}\"", file,
                               strsignal(WTERMSIG(status))));
  }
  if (WEXITSTATUS(status) != 0 || answer.empty()) {
    throw RunError(
        fmt::format("{}: is damaged: reading it ended with status {}", file, WEXITSTATUS(status)));
  }
  if (answer[0] == kRefused) throw RunError(answer.substr(1));
  return answer.substr(1);
}

}  // namespace headlab
