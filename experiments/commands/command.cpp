#include "experiments/commands/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/config/config_fields.h"
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

}  // namespace

template <class T>
void Arguments::option(const std::string& name, T& value, const std::string& help, Rule rule) {
  auto* option = app_.add_option(name, value, help);
  const bool told = help.find("default") != std::string::npos;
  if (value != T{} && !told) option->capture_default_str();
  if (rule == kRequired) option->required();
  if (std::is_same_v<T, int64_t>)
    option->check(number(fmt::format("at most {}", kLargestInteger),
                         [](double x) { return x <= kLargestInteger; }));
  if (rule == kAboveZero) option->check(number("a number above 0", [](double x) { return x > 0; }));
  if (rule == kZeroOrMore)
    option->check(number("a number that is 0 or more", [](double x) { return x >= 0; }));
  if (std::is_same_v<T, double>)
    option->check(number("a number that a 32-bit float holds", [](double x) {
      return std::abs(x) <= std::numeric_limits<float>::max();
    }));
}
template void Arguments::option(const std::string&, std::string&, const std::string&, Rule);
template void Arguments::option(const std::string&, std::optional<std::string>&, const std::string&,
                                Rule);
template void Arguments::option(const std::string&, std::vector<std::string>&, const std::string&,
                                Rule);
template void Arguments::option(const std::string&, int&, const std::string&, Rule);
template void Arguments::option(const std::string&, int64_t&, const std::string&, Rule);
template void Arguments::option(const std::string&, uint64_t&, const std::string&, Rule);
template void Arguments::option(const std::string&, double&, const std::string&, Rule);

void Arguments::choice(const std::string& name, std::string& value, const std::string& help,
                       const std::vector<std::string>& words, Rule rule) {
  option(name, value, help, rule);
  app_.get_option(name)->check(CLI::IsMember(words));
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

std::vector<CommandWord> words_of(const Command& command) {
  CLI::App app;
  Arguments arguments(app);
  command.add(arguments);
  std::vector<CommandWord> words;
  for (const auto* option : app.get_options()) {
    const auto name = option->get_name();
    const bool flag = option->get_items_expected_max() == 0;
    const auto type = option->get_type_name();  // TEXT, or TEXT:{zero,mean}
    words.push_back({.name = name.starts_with("-h,") ? "--help" : name,
                     .value = flag ? "" : type.substr(0, type.find(':')),
                     .help = option->get_description(),
                     .usual = option->get_default_str(),
                     .choices = arguments.choices_of(name),
                     .required = option->get_required(),
                     .many = option->get_expected_max() > 1});
  }
  return words;
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
