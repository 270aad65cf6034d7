// Preloaded into or linked with the program, of whose short commands the loading of libraries takes
// most: they are loaded once, and each command that a test asks for is a copy of the process at
// main's first line (tests/warm_program.py, tests/started_program.h).
//
// Its stdin is a socket of whole messages. A request holds the folder, the number of arguments, the
// arguments and the environment, each ended by a 0, and with it stdin, stdout and stderr; the
// answer is the id of the process, which is a child of the one that asks.
#include <dlfcn.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <vector>

namespace {

constexpr int kRequests = STDIN_FILENO;
constexpr size_t kLongest = 1 << 20;
using Descriptors = std::array<int, 3>;
using Main = int (*)(int, char**, char**);

Main main_of_program = nullptr;

// fork, but for whose child it is. The C library is told the thread's new id where it keeps it.
pid_t fork_of_the_caller() {
  int* thread = nullptr;
  ::prctl(PR_GET_TID_ADDRESS, &thread);
  const auto flags =
      CLONE_PARENT | SIGCHLD | (thread ? CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID : 0);
  return static_cast<pid_t>(::syscall(SYS_clone, flags, nullptr, nullptr, thread, nullptr));
}

[[noreturn]] void run(std::vector<char>& message, const Descriptors& given) {
  std::vector<char*> texts;
  for (char *at = message.data(), *end = at + message.size(); at < end; at += std::strlen(at) + 1)
    texts.push_back(at);
  const int count = std::atoi(texts[1]);
  const auto first = texts.begin() + 2;
  std::vector<char*> arguments(first, first + count), environment(first + count, texts.end());
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  for (int n = 0; n < 3; ++n) ::dup2(given[n], n);
  for (const int descriptor : given) ::close(descriptor);
  if (::chdir(texts[0]) != 0) ::_exit(127);
  environ = environment.data();
  std::exit(main_of_program(count, arguments.data(), environ));
}

// Until nobody asks any more. Without a socket to be asked on, such as in a training of a sweep, it
// is the program.
int serve(int count, char** words, char** settings) {
  std::vector<char> message(kLongest);
  for (;;) {
    iovec part{message.data(), message.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(Descriptors))> control;
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const auto length = ::recvmsg(kRequests, &header, MSG_CMSG_CLOEXEC);
    if (length < 0 && errno == ENOTSOCK) return main_of_program(count, words, settings);
    if (length <= 0) ::_exit(0);
    Descriptors given;
    std::memcpy(given.data(), CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof given);
    const pid_t child = fork_of_the_caller();
    if (child == 0) {
      message.resize(static_cast<size_t>(length));
      run(message, given);
    }
    for (const int descriptor : given) ::close(descriptor);
    std::ignore = ::send(kRequests, &child, sizeof child, MSG_NOSIGNAL);
  }
}

}  // namespace

// What the C library is started by, with main as the first argument.
extern "C" int __libc_start_main(Main main, int count, char** words, void (*init)(), void (*fini)(),
                                 void (*loader)(), void* stack) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  main_of_program = main;
  const auto start = reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(serve, count, words, init, fini, loader, stack);
}
