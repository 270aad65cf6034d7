#include "experiments/commands/reference_pages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/attention/call/statistic.h"
#include "core/head_kinds.h"
#include "experiments/commands/command.h"
#include "experiments/commands/config_description.h"
#include "experiments/commands/head_facts.h"
#include "experiments/system/exit_codes.h"
#include "experiments/system/program_name.h"
#include "experiments/text/table.h"

namespace headlab {
namespace {

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

Table table_of_texts(const std::vector<std::string>& titles) {
  std::vector<Column> columns;
  for (const auto& title : titles) columns.push_back({.title = title, .is_text = true});
  return Table(std::move(columns));
}

// As code; "" of nothing.
std::string code(const std::string& text) { return text.empty() ? "" : '`' + text + '`'; }

// Text of a cell: code where it is not empty, with the bars of alternatives as commas.
std::string cell(const std::string& text) { return code(replaced(text, " | ", "`, `")); }

std::string field_table(const std::vector<FieldInfo>& fields) {
  auto table = table_of_texts({"key", "type", "default", "allowed", "what"});
  for (const auto& f : fields)
    table.add({code(f.name), f.type, cell(f.default_text), cell(f.limits), f.help});
  return table.markdown();
}

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

std::string links(const std::vector<std::string>& papers) {
  std::string text;
  for (const auto& paper : papers)
    text += fmt::format("{}[{}](https://arxiv.org/abs/{})", text.empty() ? "" : ", ", paper, paper);
  return text;
}

std::string statistics(const std::vector<Statistic>& table) {
  auto page = table_of_texts({"statistic", "unit", "what", "formula"});
  for (const auto& s : table)
    page.add({code(s.name), std::string_view(s.units) == "1" ? "" : s.units, s.long_name,
              code(s.formula)});
  return page.markdown();
}

std::string init_sentence(const HeadFacts& f) {
  if (!f.init) return "`init_weights: host` is refused.";
  if (f.init->empty()) return "`init_weights`: `paper` and `host` are the same.";
  std::string text = "`init_weights`:\n";
  for (const auto& d : *f.init)
    text += fmt::format("\n- {}: by `paper` {}; by `host` {}", d.parameters, d.paper, d.host);
  return text;
}

std::string section(const HeadFacts& f) {
  std::string yes, no;
  for (const auto& [what, holds] : f.promises)
    (holds ? yes : no) += fmt::format("{}{}", (holds ? yes : no).empty() ? "" : ", ", what);
  std::string text = fmt::format("## {}\n\n{}.\n\n", f.name, f.summary);
  if (!f.papers.empty()) text += fmt::format("arXiv: {}\n\n", links(f.papers));
  if (!f.opening.empty()) text += fmt::format("```text\n{}\n```\n\n", f.opening);
  text += field_table(f.options) + '\n';
  text += init_sentence(f) + "\n\n";
  text += fmt::format("Promises: {}. Not: {}.\n\n", yes, no.empty() ? "nothing of these" : no);
  text += fmt::format("Parameters: `{}`\n\n", fmt::join(f.parameters, "`, `"));
  if (!f.own.empty()) text += "Statistics of its own:\n\n" + statistics(f.own) + '\n';
  if (!f.without.empty()) text += fmt::format("Without: `{}`\n\n", fmt::join(f.without, "`, `"));
  return text;
}

}  // namespace

// The kinds of heads have a page of their own.
std::string config_page() {
  std::string text;
  for (const auto& table : experiment_tables()) {
    if (table.family == &head_registry()) continue;
    const std::string summary = summary_of(table).empty() ? table.help : summary_of(table);
    text += fmt::format("## {}\n\n{}{}\n", title_of(table), summary.empty() ? "" : summary + "\n\n",
                        field_table(table.fields));
  }
  return text;
}

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

std::string kinds_table() {
  auto table = table_of_texts({"kind", "what", "paper, arXiv"});
  for (const auto& name : head_names()) {
    const auto facts = facts_of(head_kind(name));
    table.add({code(name), facts.summary, links(facts.papers)});
  }
  return table.markdown();
}

std::string kinds_page() {
  std::string text;
  for (const auto& name : head_names()) text += section(facts_of(head_kind(name)));
  return text + "## Statistics of every kind\n\n" + statistics(statistic_table());
}

}  // namespace headlab
