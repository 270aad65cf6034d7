#include "experiments/system/host_name.h"

#include <unistd.h>

namespace headlab {

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace headlab
