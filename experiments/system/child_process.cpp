#include "experiments/system/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
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
#include <new>
#include <system_error>

#include "core/errors.h"

namespace headlab {
namespace {

constexpr rlim_t kSeconds = 5;                // of computing, and one more for each kBytesASecond
constexpr rlim_t kBytesASecond = 4 << 20;     // of the file; many times less than it takes
constexpr rlim_t kMemory = rlim_t{2} << 30;   // beyond what the parent has and the file's size
constexpr rlim_t kGrowth = rlim_t{64} << 20;  // of the file
constexpr const char* kRemedy = "; take a copy from before";
constexpr char kAnswered = 'a', kRefused = 'r', kStarved = 's';  // the first byte of what it says

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
struct ChildLimits {
  rlim_t seconds = kSeconds, wait = 0, memory = kMemory, size = kGrowth;

  explicit ChildLimits(const std::string& file) {
    std::error_code none;
    if (const rlim_t bytes = std::filesystem::file_size(file, none); !none) {
      seconds += bytes / kBytesASecond;
      memory += bytes;
      size += bytes;
    }
    wait = 3 * seconds;
  }

  void set() const {
    const auto limit = [](auto what, rlim_t soft, rlim_t hard) {
      rlimit now{};
      getrlimit(what, &now);  // root could raise them
      const rlimit both = {std::min(soft, now.rlim_cur), std::min(hard, now.rlim_max)};
      setrlimit(what, &both);
    };
    limit(RLIMIT_CPU, seconds, seconds + 1);  // a signal of its own, then the kill
    alarm(static_cast<unsigned>(wait));
    limit(RLIMIT_CORE, 0, 0);
    if (const rlim_t data = data_size(); data > 0) limit(RLIMIT_DATA, data + memory, data + memory);
    limit(RLIMIT_FSIZE, size, size);
  }
};

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
  } catch (const std::bad_alloc&) {
    return {kStarved};
  } catch (const std::exception& error) {  // lengths without sense
    return damaged(error.what());
  }
}

[[noreturn]] void be_child(int out, const std::string& file,
                           const std::function<std::string()>& body, const ChildLimits& limits) {
  // The parent's handlers would save checkpoints, or report a crash that is none of the parent's.
  for (const int signal :
       {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM, SIGXCPU, SIGXFSZ, SIGPIPE}) {
    std::signal(signal, SIG_DFL);
  }
  // Ctrl-C and schedulers mean the parent, which ends the child when it ends.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    std::signal(signal, SIG_IGN);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);  // threads of the parent may block some
  limits.set();
  const int nowhere = open("/dev/null", O_WRONLY);
  if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);  // a crashing allocator prints
  write_all(out, answer_of(file, body));
  _exit(0);
}

struct ChildEnd {
  std::string answer;
  int status = 0;
  double computed = 0;  // seconds
};

ChildEnd run_child(const std::string& file, const std::function<std::string()>& body,
                   const ChildLimits& limits) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw ChildUnfinished(file + ": no pipe: " + std::strerror(errno));
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    be_child(ends[1], file, body, limits);
  }
  const int failed = errno;
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    throw ChildUnfinished(file + ": no process to read it in: " + std::strerror(failed));
  }
  ChildEnd end{read_all(ends[0])};
  close(ends[0]);
  rusage used{};
  while (wait4(child, &end.status, 0, &used) < 0 && errno == EINTR) {
  }
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  end.computed = seconds(used.ru_utime) + seconds(used.ru_stime);
  return end;
}

bool ended_by(const ChildEnd& end, int signal) {
  return WIFSIGNALED(end.status) && WTERMSIG(end.status) == signal;
}

// Which limit of ours the child came to, or who else ended it; "": neither.
std::string unfinished(const ChildEnd& end, const ChildLimits& limits) {
  const bool computed = end.computed >= static_cast<double>(limits.seconds);
  if (ended_by(end, SIGXCPU) || (ended_by(end, SIGKILL) && computed))
    return fmt::format("reading it took too long: more than {} s of computing", limits.seconds);
  if (ended_by(end, SIGALRM))
    return fmt::format("reading it took too long: more than {} s", limits.wait);
  if (ended_by(end, SIGXFSZ)) return "mending it would make it larger by more than 64 MiB";
  if (end.answer.starts_with(kStarved))
    return fmt::format("reading it took too much memory: more than {} MiB", limits.memory >> 20);
  if (ended_by(end, SIGKILL)) return "the process that read it was killed, perhaps for its memory";
  return "";
}

}  // namespace

std::string in_child_process(const std::string& file, const std::function<std::string()>& body) {
  const ChildLimits limits(file);
  ChildEnd end = run_child(file, body, limits);
  const bool waited = ended_by(end, SIGALRM) && end.computed < 0.1 * static_cast<double>(kSeconds);
  if (waited) end = run_child(file, body, limits);
  if (const std::string why = unfinished(end, limits); !why.empty())
    throw ChildUnfinished(file + ": " + why +
                          "; it was left as it is, and the same command tries again");
  if (WIFSIGNALED(end.status)) {
    throw RunError(fmt::format("{}: is damaged: reading it ended in \"{}\"{}", file,
                               strsignal(WTERMSIG(end.status)), kRemedy));
  }
  if (WEXITSTATUS(end.status) != 0 || end.answer.empty()) {
    throw RunError(fmt::format("{}: is damaged: reading it ended with status {}{}", file,
                               WEXITSTATUS(end.status), kRemedy));
  }
  if (end.answer[0] == kRefused) throw RunError(end.answer.substr(1));
  return end.answer.substr(1);
}

}  // namespace headlab
