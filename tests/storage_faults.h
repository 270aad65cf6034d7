// A storage that fails, or a process that dies, at a chosen call: the test program's definitions of
// these functions stand before those of the C library. They are weak, so that several files may
// include them.
#pragma once

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace headlab {

struct StorageFault {
  static inline int64_t calls_left = -1;  // until the fault; negative: none will come
  static inline int error = 0;            // that the call gets; 0: the process is killed

  static inline std::vector<std::string>* trace = nullptr;  // of syncs and renames, in order

  static void note(const char* call, const std::filesystem::path& path) {
    if (trace != nullptr) trace->push_back(std::string(call) + " " + path.filename().string());
  }
  static bool due() { return calls_left >= 0 && calls_left-- == 0; }
  static int strike() {
    if (error == 0) ::raise(SIGKILL);
    errno = error;
    return -1;
  }
};

// Runs `action` in a process of its own: false when it was killed by a fault.
inline bool survives(const std::function<void()>& action) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      action();
    } catch (...) {  // must not reach the test program's own
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
    StorageFault::calls_left = -1;  // it struck there
    return false;
  }
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  return true;
}

// Calls `action` with a fault at the n-th call that changes the storage, for n = 0, 1, ... until it
// gets through without. `action` says whether it got to its end, which `check` is told.
inline void with_fault_at_each_call(int error, const std::function<void()>& prepare,
                                    const std::function<bool()>& action,
                                    const std::function<void(bool finished)>& check) {
  for (int64_t n = 0;; ++n) {
    INFO("fault at call " << n);
    prepare();
    StorageFault::error = error;
    StorageFault::calls_left = n;
    const bool finished = action();
    const bool struck = StorageFault::calls_left < 0;
    StorageFault::calls_left = -1;
    check(finished);
    if (struck) continue;
    CHECK(finished);
    CHECK(n > 0);
    return;
  }
}

}  // namespace headlab

#define HEADLAB_REAL(name) \
  static const auto real = reinterpret_cast<decltype(&::name)>(dlsym(RTLD_NEXT, #name))

extern "C" {

// NOLINTBEGIN(misc-definitions-in-headers): they are weak, one of them counts
[[gnu::weak]] ssize_t write(int descriptor, const void* data, size_t size) {
  HEADLAB_REAL(write);
  if (!headlab::StorageFault::due()) return real(descriptor, data, size);
  real(descriptor, data, size / 2);  // dies or fails half-way
  return headlab::StorageFault::strike();
}

[[gnu::weak]] int fsync(int descriptor) {
  HEADLAB_REAL(fsync);
  std::error_code none;
  headlab::StorageFault::note(
      "fsync", std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), none));
  return headlab::StorageFault::due() ? headlab::StorageFault::strike() : real(descriptor);
}

[[gnu::weak]] int rename(const char* from, const char* to) noexcept {
  HEADLAB_REAL(rename);
  headlab::StorageFault::note("rename", to);
  return headlab::StorageFault::due() ? headlab::StorageFault::strike() : real(from, to);
}

[[gnu::weak]] int renameat2(int from_at, const char* from, int to_at, const char* to,
                            unsigned flags) noexcept {
  HEADLAB_REAL(renameat2);
  return headlab::StorageFault::due() ? headlab::StorageFault::strike()
                                      : real(from_at, from, to_at, to, flags);
}

[[gnu::weak]] int mkdir(const char* path, mode_t mode) noexcept {
  HEADLAB_REAL(mkdir);
  return headlab::StorageFault::due() ? headlab::StorageFault::strike() : real(path, mode);
}

[[gnu::weak]] int symlink(const char* target, const char* path) noexcept {
  HEADLAB_REAL(symlink);
  return headlab::StorageFault::due() ? headlab::StorageFault::strike() : real(target, path);
}

[[gnu::weak]] int unlinkat(int at, const char* path, int flags) noexcept {
  HEADLAB_REAL(unlinkat);
  return headlab::StorageFault::due() ? headlab::StorageFault::strike() : real(at, path, flags);
}
// NOLINTEND(misc-definitions-in-headers)

}  // extern "C"

#undef HEADLAB_REAL
