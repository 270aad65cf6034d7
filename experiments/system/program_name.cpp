#include "experiments/system/program_name.h"

#include <cstdlib>

namespace headlab {

std::string program_name() {
  const char* name = std::getenv("HEADLAB_COMMAND");
  return name != nullptr && *name != '\0' ? name : "headlab";
}

}  // namespace headlab
