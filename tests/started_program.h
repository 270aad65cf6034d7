// Runs the built program, or a shell, as a user would: a process of its own with its output, exit
// code, environment and, where asked, a terminal.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "headlab_build.h"
#include "tests/scratch.h"

extern char** environ;

namespace headlab::testing {

using Arguments = std::vector<std::string>;

inline const std::string kHeadlab = std::filesystem::path(build::kBinaryDir) / "headlab";
inline const std::string kWriteHandBuilt =
    std::filesystem::path(build::kBinaryDir) / "headlab_write_hand_built";
inline const std::string kWarmProgram =
    std::filesystem::path(build::kBinaryDir) / "headlab_warm_program";
inline const std::string kPreloaded =
    std::filesystem::path(build::kBinaryDir) / "libheadlab_warm_program.so";

struct Outcome {
  int code = 0;  // of exit; a process that a signal killed: minus the signal
  std::string out, err;
};

struct Invocation {
  Arguments arguments;
  std::filesystem::path directory = {};                 // where it runs; empty: here
  std::map<std::string, std::string> environment = {};  // over the caller's
  bool terminal = false;                                // stderr is one
  std::string program = kHeadlab;
};

// The program, whose libraries are loaded once for all that this process asks of it: see
// tests/warm_program.cpp.
class WarmProgram {
 public:
  static WarmProgram& instance() {
    static WarmProgram only;
    return only;
  }
  ~WarmProgram() {
    ::close(socket_);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  WarmProgram(const WarmProgram&) = delete;
  WarmProgram& operator=(const WarmProgram&) = delete;

  // The id of a child of ours that runs the program; 0: its words are too many for a message.
  pid_t begin(const std::filesystem::path& directory, const std::vector<std::string>& words,
              const std::vector<std::string>& settings, int out, int err) {
    std::string text;
    const auto add = [&](const std::string& one) { text.append(one).push_back('\0'); };
    add(std::filesystem::absolute(directory.empty() ? "." : directory).string());
    add(std::to_string(words.size()));
    for (const auto* all : {&words, &settings})
      for (const std::string& one : *all) add(one);
    const std::array<int, 3> descriptors{nothing_, out, err};
    iovec part{text.data(), text.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof descriptors)> control{};
    msghdr message{};
    message.msg_iov = &part, message.msg_iovlen = 1;
    message.msg_control = control.data(), message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptors);
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof descriptors);
    if (::sendmsg(socket_, &message, MSG_NOSIGNAL) < 0 && errno == EMSGSIZE) return 0;
    pid_t begun = 0;
    REQUIRE(::recv(socket_, &begun, sizeof begun, 0) == sizeof begun);
    REQUIRE(begun > 0);
    return begun;
  }

 private:
  WarmProgram() {
    // Linked where a sanitizer must be loaded first.
    const bool preloads = !std::filesystem::exists(kWarmProgram);
    std::string program = preloads ? kHeadlab : kWarmProgram;
    std::array<int, 2> ends;
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
    nothing_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    REQUIRE(nothing_ >= 0);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    std::string preload = "LD_PRELOAD=" + kPreloaded;
    std::array<char*, 2> words{program.data(), nullptr};
    std::vector<char*> settings;
    for (char** setting = environ; *setting != nullptr; ++setting) settings.push_back(*setting);
    if (preloads) settings.push_back(preload.data());
    settings.push_back(nullptr);
    INFO(program);
    REQUIRE(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, words.data(),
                          settings.data()) == 0);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    socket_ = ends[0];
  }

  pid_t pid_ = 0;
  int socket_ = -1, nothing_ = -1;
};

class Process {
 public:
  explicit Process(const Invocation& invocation) {
    const auto [out, child_out] = pipe_ends();
    const auto [err, child_err] = invocation.terminal ? terminal_ends() : pipe_ends();
    sources_ = {Source{out, {}}, Source{err, {}}};
    spawn(invocation, child_out, child_err);
    ::close(child_out);
    ::close(child_err);
  }
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    for (const Source& source : sources_)
      if (source.descriptor >= 0) ::close(source.descriptor);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return pid_; }
  void signal(int number) { REQUIRE(::kill(pid_, number) == 0); }

  // Returns when `ready` is true of what stderr has said so far.
  template <class Ready>
  void wait_for(Ready ready) {
    while (!ready(std::as_const(sources_[1].text))) {
      INFO("stderr: " << sources_[1].text);
      REQUIRE(read_more());
    }
  }

  Outcome end() {
    while (read_more()) {
    }
    int status = 0;
    REQUIRE(::waitpid(std::exchange(pid_, 0), &status, 0) > 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), sources_[0].text,
            sources_[1].text};
  }

 private:
  struct Source {
    int descriptor = -1;
    std::string text;
  };

  static std::pair<int, int> pipe_ends() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    return {ends[0], ends[1]};
  }
  // A terminal that passes on what is written as it is.
  static std::pair<int, int> terminal_ends() {
    const int ours = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(ours >= 0);
    REQUIRE(::grantpt(ours) == 0);
    REQUIRE(::unlockpt(ours) == 0);
    const int theirs = ::open(::ptsname(ours), O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(theirs >= 0);
    termios mode{};
    ::tcgetattr(theirs, &mode);
    ::cfmakeraw(&mode);
    ::tcsetattr(theirs, TCSANOW, &mode);
    return {ours, theirs};
  }

  static std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (std::string& text : texts) all.push_back(text.data());
    all.push_back(nullptr);
    return all;
  }

  // OpenMP reads its settings before main() begins.
  static bool read_by_libraries(const Invocation& invocation) {
    return std::ranges::any_of(invocation.environment, [](const auto& setting) {
      return setting.first.starts_with("OMP_") || setting.first.starts_with("GOMP_");
    });
  }

  void spawn(const Invocation& invocation, int out, int err) {
    std::vector<std::string> words{invocation.program}, settings;
    words.insert(words.end(), invocation.arguments.begin(), invocation.arguments.end());
    for (char** setting = environ; *setting != nullptr; ++setting) {
      const std::string text = *setting;
      if (!invocation.environment.count(text.substr(0, text.find('=')))) settings.push_back(text);
    }
    for (const auto& [name, value] : invocation.environment)
      settings.emplace_back(name).append("=").append(value);
    if (invocation.program == kHeadlab && !read_by_libraries(invocation))
      pid_ = WarmProgram::instance().begin(invocation.directory, words, settings, out, err);
    if (pid_ > 0) return;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
    if (!invocation.directory.empty())
      ::posix_spawn_file_actions_addchdir_np(&actions, invocation.directory.c_str());
    const int failed = ::posix_spawnp(&pid_, invocation.program.c_str(), &actions, nullptr,
                                      pointers(words).data(), pointers(settings).data());
    ::posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) pid_ = 0;
    INFO(invocation.program);
    REQUIRE(failed == 0);
  }

  // False when both outputs have ended.
  bool read_more() {
    constexpr int kPatience = 300'000;  // ms, for a program that hangs
    std::array<pollfd, 2> polled{pollfd{sources_[0].descriptor, POLLIN, 0},
                                 pollfd{sources_[1].descriptor, POLLIN, 0}};
    if (polled[0].fd < 0 && polled[1].fd < 0) return false;
    REQUIRE(::poll(polled.data(), polled.size(), kPatience) > 0);
    for (size_t n = 0; n < polled.size(); ++n) {
      if (polled[n].fd < 0 || polled[n].revents == 0) continue;
      std::array<char, 4096> buffer;
      const ssize_t count = ::read(polled[n].fd, buffer.data(), buffer.size());
      if (count > 0) {
        sources_[n].text.append(buffer.data(), static_cast<size_t>(count));
      } else {  // a pipe's end, or the error that is a terminal's
        ::close(std::exchange(sources_[n].descriptor, -1));
      }
    }
    return true;
  }

  pid_t pid_ = 0;
  std::array<Source, 2> sources_;  // stdout, stderr
};

inline Outcome headlab(const Arguments& arguments, const std::filesystem::path& directory = {}) {
  return Process({.arguments = arguments, .directory = directory}).end();
}

}  // namespace headlab::testing
