// The words of a command as a table, for its completion, the manual and the reference page.
#include <CLI/CLI.hpp>

#include "experiments/commands/command.h"

namespace headlab {

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

}  // namespace headlab
