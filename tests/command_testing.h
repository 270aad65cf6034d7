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

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/files/safetensors.h"
#include "headlab_build.h"
#include "tests/scratch.h"

extern char** environ;

namespace headlab::testing {

using Arguments = std::vector<std::string>;
using Json = nlohmann::json;

inline const std::filesystem::path kProject{build::kSourceDir};
inline const std::string kHeadlab = std::filesystem::path(build::kBinaryDir) / "headlab";
inline const std::string kWriteHandBuilt =
    std::filesystem::path(build::kBinaryDir) / "headlab_write_hand_built";
inline const std::string kWarmProgram =
    std::filesystem::path(build::kBinaryDir) / "headlab_warm_program";
inline const std::string kPreloaded =
    std::filesystem::path(build::kBinaryDir) / "libheadlab_warm_program.so";
inline const std::filesystem::path kGolden = kProject / "tests" / "golden";

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

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    lines.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

inline std::string replaced(std::string text, const std::string& old, const std::string& fresh) {
  const size_t at = text.find(old);
  REQUIRE(at != std::string::npos);
  return text.replace(at, old.size(), fresh);
}

inline Json json_of(const std::filesystem::path& path) { return Json::parse(read_bytes(path)); }

// Every file below a directory: its bytes, where a link leads, and when it was written.
inline std::map<std::string, std::string> snapshot(const std::filesystem::path& directory) {
  namespace fs = std::filesystem;
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    std::string& file = files[fs::relative(entry.path(), directory).string()];
    if (entry.is_symlink()) {
      file = fs::read_symlink(entry.path()).string();
    } else if (entry.is_regular_file()) {
      file = read_bytes(entry.path()) +
             std::to_string(entry.last_write_time().time_since_epoch().count());
    }
  }
  return files;
}

// The only entry of a directory.
inline std::filesystem::path only_entry(const std::filesystem::path& directory) {
  const auto names = names_in(directory);
  REQUIRE(names.size() == 1);
  return directory / *names.begin();
}

// A tensor of a file, which must have this type and shape.
template <class T>
std::vector<T> numbers(const SafetensorsFile& file, const std::string& name,
                       const std::vector<int64_t>& shape) {
  INFO(name);
  const TensorEntry* entry = file.find(name);
  REQUIRE(entry != nullptr);
  REQUIRE(entry->dtype == (sizeof(T) == 4 ? Dtype::kF32 : Dtype::kF64));
  CHECK(entry->shape == shape);
  std::vector<T> values(entry->bytes / sizeof(T));
  std::memcpy(values.data(), entry->data, entry->bytes);
  return values;
}

inline TensorEntry integers(const std::string& name, const std::vector<int64_t>& shape,
                            const std::vector<int64_t>& values) {
  return {name, Dtype::kI64, shape, reinterpret_cast<const std::byte*>(values.data()),
          values.size() * sizeof(int64_t)};
}

inline std::vector<float> floats(const SafetensorsFile& file, const std::string& name,
                                 const std::vector<int64_t>& shape) {
  return numbers<float>(file, name, shape);
}

// One line on stderr that holds all of `parts`, and nothing on stdout.
inline void check_refusal(const Outcome& outcome, int code, const std::vector<std::string>& parts) {
  INFO("stdout: " << outcome.out << "\nstderr: " << outcome.err);
  CHECK(outcome.code == code);
  CHECK(outcome.out.empty());
  CHECK(lines_of(outcome.err).size() == 1);
  CHECK_THAT(outcome.err, Catch::Matchers::StartsWith("headlab: "));
  for (const std::string& part : parts) CHECK_THAT(outcome.err, Catch::Contains(part));
}

// A config that trains in a fraction of a second: the places of its keys are part of messages.
inline const std::string kTinyConfig = R"(name: tiny
seed: 7
data: {kind: char, path: text.txt, context: 8}
model: {kind: decoder, layers: 1, d_model: 16, heads: 2, attention: {kind: mha}}
train:
  steps: 5
  batch: 4
  warmup: 1
  eval_every: 2
  eval_batches: 1
  checkpoint: {every: 2}
log: {every: 1, stats_every: 2, attention: {every: 2, probes: 1}}
)";

// A directory with tiny.yaml and its text, in which commands run.
class Bench {
 public:
  Bench() {
    std::string text;
    while (text.size() < 2000) text += "The quick brown fox jumps over a lazy dog, and naps.\n";
    write_bytes(*this / "text.txt", text);
    write_bytes(*this / "tiny.yaml", kTinyConfig);
  }

  std::filesystem::path operator/(const std::string& name) const { return scratch_ / name; }
  const std::filesystem::path& path() const { return scratch_.path(); }
  Outcome headlab(const Arguments& arguments) const { return testing::headlab(arguments, path()); }

  // Runs tiny.yaml to its end; the run's directory.
  std::filesystem::path train(const Arguments& overrides = {}) const {
    Arguments arguments{"run", "tiny.yaml"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    const Outcome outcome = headlab(arguments);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return lines_of(outcome.out).at(0);
  }

 private:
  Scratch scratch_;
};

// One with a run that all cases of a file share; who inherits trains it.
class TrainedBench : public Bench {
 public:
  // What a command says of the run.
  Json json(Arguments arguments) const {
    arguments.insert(arguments.begin() + 1, run_);
    arguments.push_back("--json");
    const Outcome outcome = headlab(arguments);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return Json::parse(outcome.out);
  }
  const std::string& run() const { return run_; }

 protected:
  std::string run_;  // its directory
};

}  // namespace headlab::testing
