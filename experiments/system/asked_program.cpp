#include "experiments/system/asked_program.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/errors.h"
#include "experiments/system/exec_words.h"

namespace headlab {
AskedProgram::AskedProgram(std::vector<std::string> words,
                           const std::map<std::string, std::string>& environment)
    : name_(words.at(0)) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw RunError(fmt::format("{}: no socket to ask it by: {}", name_, std::strerror(errno)));
  auto settings = environment_with(environment);
  const auto word_pointers = pointers_to(words), setting_pointers = pointers_to(settings);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO})
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], descriptor);
  const int failed = ::posix_spawn(&pid_, name_.c_str(), &actions, nullptr, word_pointers.data(),
                                   setting_pointers.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  channel_ = ends[0];
  if (failed == 0) return;
  ::close(channel_);
  throw RunError(fmt::format("{}: cannot be started: {}", name_, std::strerror(failed)));
}

AskedProgram::~AskedProgram() {
  ::close(channel_);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void AskedProgram::say_ended() {
  throw RunError(fmt::format("{}: ended before it had answered", name_));
}

std::string AskedProgram::ask(const std::string& line) {
  const std::string words = line + "\n";
  for (size_t sent = 0; sent < words.size();) {
    const auto n = ::send(channel_, words.data() + sent, words.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) say_ended();
    if (n > 0) sent += static_cast<size_t>(n);
  }
  for (;;) {
    if (const auto end = read_.find('\n'); end != read_.npos) {
      auto answer = read_.substr(0, end);
      read_.erase(0, end + 1);
      return answer;
    }
    std::array<char, 4096> part{};
    const auto n = ::recv(channel_, part.data(), part.size(), 0);
    if (n == 0 || (n < 0 && errno != EINTR)) say_ended();
    if (n > 0) read_.append(part.data(), static_cast<size_t>(n));
  }
}

}  // namespace headlab
