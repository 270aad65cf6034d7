#include "experiments/commands/command.h"

#include <fmt/format.h>

#include <cmath>

namespace headlab {
namespace {

CLI::Validator number(const char* what, bool (*holds)(double)) {
  const auto problem = [=](const std::string& text) {
    double value = 0;
    const bool right = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
    return right && holds(value) ? "" : fmt::format("must be {}, is '{}'", what, text);
  };
  return {problem, ""};
}

}  // namespace

CLI::Validator above_zero() {
  return number("a number above 0", [](double value) { return value > 0; });
}

CLI::Validator zero_or_more() {
  return number("a number that is 0 or more", [](double value) { return value >= 0; });
}

std::vector<Command>& commands() {
  static std::vector<Command> registered;
  return registered;
}

std::vector<std::string>& command_line() {
  static std::vector<std::string> words;
  return words;
}

}  // namespace headlab
