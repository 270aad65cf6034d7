#include "experiments/commands/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/config/config_fields.h"
#include "experiments/commands/report.h"
#include "experiments/files/json_text.h"
#include "experiments/system/output.h"

namespace headlab {
namespace {

// CLI11's own checks spell out the largest double when they complain.
CLI::Validator number(const std::string& what, bool (*holds)(double)) {
  const auto problem = [=](const std::string& text) {
    double value = 0;
    const bool right = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
    return right && holds(value) ? "" : fmt::format("must be {}, is '{}'", what, text);
  };
  return {problem, ""};
}

template <class T>
CLI::Option* add(CLI::App& app, const std::string& name, T& value, const std::string& help,
                 Arguments::Rule rule) {
  auto* option = app.add_option(name, value, help);
  const bool told = help.find("default") != std::string::npos;
  if (value != T{} && !told) option->capture_default_str();
  if (rule == Arguments::kRequired) option->required();
  if (std::is_same_v<T, int64_t>)
    option->check(number(fmt::format("at most {}", kLargestInteger),
                         [](double x) { return x <= kLargestInteger; }));
  if (rule == Arguments::kAboveZero)
    option->check(number("a number above 0", [](double x) { return x > 0; }));
  if (rule == Arguments::kZeroOrMore)
    option->check(number("a number that is 0 or more", [](double x) { return x >= 0; }));
  return option;
}

}  // namespace

void Arguments::option(const std::string& name, std::string& value, const std::string& help,
                       Rule rule) {
  add(app_, name, value, help, rule);
}
void Arguments::option(const std::string& name, std::optional<std::string>& value,
                       const std::string& help, Rule rule) {
  add(app_, name, value, help, rule);
}
void Arguments::option(const std::string& name, std::vector<std::string>& value,
                       const std::string& help, Rule rule) {
  add(app_, name, value, help, rule);
}
void Arguments::option(const std::string& name, int& value, const std::string& help, Rule rule) {
  add(app_, name, value, help, rule);
}
void Arguments::option(const std::string& name, int64_t& value, const std::string& help,
                       Rule rule) {
  add(app_, name, value, help, rule);
}
void Arguments::option(const std::string& name, uint64_t& value, const std::string& help,
                       Rule rule) {
  add(app_, name, value, help, rule);
}
void Arguments::option(const std::string& name, double& value, const std::string& help, Rule rule) {
  add(app_, name, value, help, rule)
      ->check(number("a number that a 32-bit float holds",
                     [](double x) { return std::abs(x) <= std::numeric_limits<float>::max(); }));
}

void Arguments::choice(const std::string& name, std::string& value, const std::string& help,
                       const std::vector<std::string>& words, Rule rule) {
  add(app_, name, value, help, rule)->check(CLI::IsMember(words));
  choices_[name] = words;
}

void Arguments::flag(const std::string& name, bool& value, const std::string& help) {
  app_.add_flag(name, value, help);
}

void Arguments::run(const std::string& name, std::string& value, const std::string& what) {
  option(name, value,
         what +
             ": its directory, a checkpoint in it, a folder that holds one, @ (the newest below "
             "runs/) or @2 (the one before it)",
         kRequired);
  runs_.push_back(&value);
}

std::vector<Command>& commands() {
  static std::vector<Command> registered;
  return registered;
}

int print(const Report& report, bool json) {
  json ? print_data(json_text(report.object) + "\n") : print_result(report.text);
  return kDone;
}

}  // namespace headlab
