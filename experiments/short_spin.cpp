// Threads of OpenMP that wait for each other spin, and libgomp spins for so long that one other
// busy process on the machine makes a training up to twenty times slower: all wait for the one
// thread whose core is taken (docs/measurements.md, "A busy neighbour"). A short spin keeps most of
// the speed in both cases. libgomp reads the environment while the program is loaded, so the
// program starts anew with GOMP_SPINCOUNT in it, before any of its libraries has started (10 ms),
// unless the user has chosen a way of waiting.
#include <alloca.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#ifndef __SANITIZE_ADDRESS__  // nothing may run before the sanitizer

namespace {

constexpr char kShortSpin[] = "GOMP_SPINCOUNT=1000";

bool sets(const char* variable, const char* name) {
  const size_t length = strlen(name);
  return strncmp(variable, name, length) == 0 && variable[length] == '=';
}

void shorten_spin(int, char** argv, char** environment) {
  size_t count = 0;
  for (; environment[count] != nullptr; ++count)
    if (sets(environment[count], "GOMP_SPINCOUNT") || sets(environment[count], "OMP_WAIT_POLICY"))
      return;
  auto** longer = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
  memcpy(longer, environment, count * sizeof(char*));
  longer[count] = const_cast<char*>(kShortSpin);
  longer[count + 1] = nullptr;
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length <= 0) return;  // it goes on as it is
  self[length] = '\0';
  execve(self, argv, longer);
}

using BeforeLibraries = void (*)(int, char**, char**);
[[gnu::section(".preinit_array"), gnu::used]] const BeforeLibraries before_libraries = shorten_spin;

}  // namespace

#endif
