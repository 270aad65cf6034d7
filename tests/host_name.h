// What this machine calls itself.
#pragma once

#include <limits.h>
#include <unistd.h>

#include <string>

namespace headlab::testing {

inline std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace headlab::testing
