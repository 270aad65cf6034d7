// The options of a command as a table, for its completion and the reference page.
#include <CLI/CLI.hpp>

#include "experiments/commands/command.h"

namespace headlab {
namespace {

// CLI11's TEXT, INT, TEXT:{a,b} in words.
std::string type_of(const std::string& name) {
  const size_t open = name.find('{');
  if (open != name.npos) {
    std::string words = name.substr(open + 1, name.rfind('}') - open - 1);
    for (size_t at = words.find(','); at != words.npos; at = words.find(',', at + 2))
      words.insert(at + 1, " ");
    return "one of " + words;
  }
  return name == "TEXT" ? "text" : name == "FLOAT" ? "number" : "integer";
}

}  // namespace

std::vector<std::string> long_options(const Command& command) {
  CLI::App app;
  Arguments arguments(app);
  command.add(arguments);
  std::vector<std::string> names;
  for (const auto* option : app.get_options())
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<OptionInfo> options_of(const Command& command) {
  CLI::App app;
  app.set_help_flag();  // every command has it
  Arguments arguments(app);
  command.add(arguments);
  std::vector<OptionInfo> table;
  for (const auto* option : app.get_options()) {
    const bool flag = option->get_expected_max() == 0;
    table.push_back({.name = option->get_name(),
                     .type = flag ? "" : type_of(option->get_type_name()),
                     .default_text = option->get_default_str(),
                     .help = option->get_description(),
                     .required = option->get_required(),
                     .many = option->get_expected_max() > 1});
  }
  return table;
}

}  // namespace headlab
