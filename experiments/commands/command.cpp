#include "experiments/commands/command.h"

namespace headlab {

std::vector<Command>& commands() {
  static std::vector<Command> registered;
  return registered;
}

}  // namespace headlab
