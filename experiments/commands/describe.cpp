// `headlab describe WORD`: a section or key of a config, a kind of data, of models or of heads.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "experiments/commands/command.h"
#include "experiments/commands/config_description.h"
#include "experiments/commands/head_facts.h"
#include "experiments/commands/reference_pages.h"
#include "experiments/system/output.h"
#include "experiments/system/program_name.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// Two lines a field.
std::string text_of(const std::vector<FieldInfo>& fields) {
  std::string text;
  for (const auto& f : fields) {
    std::string facts = f.default_text.empty() ? "" : "default " + f.default_text;
    if (!f.limits.empty()) facts += (facts.empty() ? "" : ", ") + f.limits;
    text += fmt::format("  {:<18} {}{}\n  {:<18} {}\n", f.name, f.type,
                        facts.empty() ? "" : " (" + facts + ")", "", f.help);
  }
  return text;
}

std::string text_of(const std::vector<KeyTable>& tables) {
  std::string text;
  for (const auto& table : tables) {
    const std::string summary = summary_of(table);
    text += fmt::format("{}{}: {}\n{}", text.empty() ? "" : "\n", title_of(table),
                        summary.empty() ? table.help : summary, text_of(table.fields));
  }
  return text;
}

Json json_of(const std::vector<FieldInfo>& fields) {
  Json array = Json::array();
  for (const auto& f : fields)
    array.push_back({{"name", f.name},
                     {"type", f.type},
                     {"default", f.default_text},
                     {"limits", f.limits},
                     {"help", f.help}});
  return array;
}

Json json_of(const std::vector<KeyTable>& tables) {
  Json array = Json::array();
  for (const auto& table : tables)
    array.push_back({{"path", table.path},
                     {"kind", table.kind},
                     {"summary", summary_of(table)},
                     {"help", table.help},
                     {"options", json_of(table.fields)}});
  return {{"tables", array}};
}

// What describe says without a word.
std::string list_of_words() {
  const auto tables = experiment_tables();
  std::string text = fmt::format("'{} describe WORD' explains one of these, or a key of a config\n",
                                 program_name());
  const auto line = [&](const std::string& word, const std::string& what) {
    text += fmt::format("  {:<14} {}\n", word, what);
  };
  text += "\na config\n";
  for (const auto& field : tables.front().fields) line(field.name, field.help);
  for (const auto& table : tables)
    if (table.kind.empty() && !table.path.empty() && table.path.find('.') == table.path.npos)
      line(table.path, table.help);
  std::vector<std::string> families;
  for (const auto& table : tables)
    if (table.family && std::find(families.begin(), families.end(), table.path) == families.end())
      families.push_back(table.path);
  for (const auto& path : families) {
    text += fmt::format("\n{}.kind\n", path);
    for (const auto& table : tables)
      if (table.family && table.path == path) line(table.kind, summary_of(table));
  }
  return text;
}

Json object_of(const HeadFacts& f) {
  Json object{{"kind", f.name},
              {"summary", f.summary},
              {"papers", f.papers},
              {"opening", f.opening},
              {"options", json_of(f.options)}};
  if (f.init) object["init_weights"] = Json::array();
  for (const auto& d : f.init.value_or(InitDifferences()))
    object["init_weights"].push_back(
        {{"parameters", d.parameters}, {"paper", d.paper}, {"host", d.host}});
  for (const auto& [what, holds] : f.promises) object["traits"][what] = holds;
  object["parameters"] = f.parameters;
  object["statistics"] = Json::array();
  for (const auto& s : f.own)
    object["statistics"].push_back(
        {{"name", s.name}, {"units", s.units}, {"long_name", s.long_name}, {"formula", s.formula}});
  object["without"] = f.without;
  return object;
}

std::string init_text(const HeadFacts& f) {
  if (!f.init) return "  only 'paper': the kind has no host initialisation\n";
  if (f.init->empty()) return "  'paper' and 'host' are the same\n";
  std::string text;
  for (const auto& d : *f.init)
    text += fmt::format("  {:<22} paper: {}; host: {}\n", d.parameters, d.paper, d.host);
  return text;
}

std::string text_of(const HeadFacts& f) {
  auto text = fmt::format("{}: {}\n", f.name, f.summary);
  if (!f.opening.empty()) text += '\n' + f.opening + '\n';
  text += "\noptions\n" + text_of(f.options) + "\ninitialisation\n" + init_text(f);
  text += "\npromises\n";
  for (const auto& [what, holds] : f.promises)
    text += fmt::format("  {:<22} {}\n", what, holds ? "yes" : "no");
  text += fmt::format("\nparameters\n  {}\n", fmt::join(f.parameters, " "));
  if (!f.own.empty()) text += "\nstatistics of its own\n";
  for (const auto& s : f.own)
    text += fmt::format("  {:<22} [{}] {}: {}\n", s.name, s.units, s.long_name, s.formula);
  if (!f.without.empty())
    text += fmt::format("\nstatistics that it does not have\n  {}\n", fmt::join(f.without, " "));
  return text;
}

Report report_on(const std::string& word) {
  const auto heads = head_names();
  if (std::find(heads.begin(), heads.end(), word) != heads.end()) {
    const auto facts = facts_of(head_kind(word));
    return {.object = object_of(facts), .text = text_of(facts)};
  }
  const auto tables = tables_called(word);
  const auto is_command = [&](const Command& command) { return command.name == word; };
  if (tables.empty() && std::any_of(commands().begin(), commands().end(), is_command))
    throw ConfigError(fmt::format("describe: '{}' is a command; {} {} --help describes it", word,
                                  program_name(), word));
  if (tables.empty()) {
    const std::string meant = did_you_mean(word, words());
    throw ConfigError(fmt::format("describe: nothing is called '{}'{} there are {}", word,
                                  meant.empty() ? ";" : meant, fmt::join(words(), ", ")));
  }
  return {.object = json_of(tables), .text = text_of(tables)};
}

struct DescribeOptions {
  std::string word, markdown;
  bool json = false, table = false;

  void visit(Arguments& a) {
    a.option("word", word, "a section or key of a config, a kind of heads, data or models");
    a.flag("--json", json, "print one JSON object");
    a.flag("--table", table, "print the table of all kinds of heads, in Markdown");
    a.choice("--markdown", markdown, "print a page of docs/", {"config", "commands", "kinds"});
  }
};

int run_describe(const DescribeOptions& o) {
  if (o.table || !o.markdown.empty()) {
    print_data(o.table                    ? kinds_table()
               : o.markdown == "config"   ? config_page()
               : o.markdown == "commands" ? commands_page()
                                          : kinds_page());
    return kDone;
  }
  if (o.word.empty())
    return print({.object = {{"words", words()}}, .text = list_of_words()}, o.json);
  return print(report_on(o.word), o.json);
}

const RegisterCommand describe_command(
    {.name = "describe",
     .summary = "explain a kind of heads, a section or key of a config; alone: what there is",
     .example = "headlab describe mha\n  headlab describe train",
     .group = Group::kExtend},
    run_describe);

}  // namespace

}  // namespace headlab
