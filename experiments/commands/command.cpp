#include "experiments/commands/command.h"

namespace headlab {

std::vector<Command>& commands() {
  static std::vector<Command> registered;
  return registered;
}

std::vector<std::string>& command_line() {
  static std::vector<std::string> words;
  return words;
}

}  // namespace headlab
