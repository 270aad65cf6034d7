// docs/commands.md: every command with its options, and the exit codes.
#include <fmt/format.h>

#include "experiments/commands/command.h"
#include "experiments/commands/reference_pages.h"
#include "experiments/system/exit_codes.h"
#include "experiments/system/program_name.h"

namespace headlab {
namespace {

// What a word takes, in words: CLI11 has TEXT, INT, FLOAT.
std::string type_of(const CommandWord& word) {
  if (!word.choices.empty()) return fmt::format("one of {}", fmt::join(word.choices, ", "));
  if (word.value.empty()) return "";
  return word.value == "TEXT" ? "text" : word.value == "FLOAT" ? "number" : "integer";
}

// The example as a clone of the repository runs it, without the indentation of the help.
std::string pasted(const Command& command) {
  auto example = as_called(command.example, "scripts/headlab");
  for (size_t at = 0; (at = example.find("\n  ", at)) != example.npos; ++at)
    example.erase(at + 1, 2);
  return example;
}

std::string section(const Command& command) {
  std::string usage = "scripts/headlab " + command.name;
  auto table = table_of_texts({"option", "takes", "default", "what"});
  for (const auto& word : words_of(command)) {
    if (word.name == "--help") continue;  // every command has it
    const bool option = word.name.starts_with("--");
    const std::string many = word.many ? " ..." : "";
    if (!option) usage += ' ' + (word.required ? word.name : '[' + word.name + ']') + many;
    table.add({code(word.name + (option ? many : "")),
               type_of(word) + (word.required ? ", required" : ""), cell(word.usual), word.help});
  }
  auto text = fmt::format("### {}\n\n{}.\n\n```text\n{} [OPTION...]\n```\n\n", command.name,
                          command.summary, usage);
  if (!table.empty()) text += table.markdown() + '\n';
  return text + fmt::format("Example:\n\n```text\n{}\n```\n\n", pasted(command));
}

}  // namespace

std::string commands_page() {
  std::string text;
  for (const auto& [group, title] : kGroups) {
    text += fmt::format("## {}\n\n", title);
    for (const auto& command : commands())
      if (command.group == group) text += section(command);
  }
  auto codes = table_of_texts({"exit code", "meaning"});
  for (const auto& [exit, meaning] : kExitMeanings)
    codes.add({static_cast<int64_t>(exit), meaning});
  return text + "## Exit codes\n\n" + codes.markdown();
}

}  // namespace headlab
