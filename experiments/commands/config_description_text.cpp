// What describe prints of a config.
#include <fmt/format.h>

#include <algorithm>

#include "experiments/commands/config_description.h"
#include "experiments/system/program_name.h"

namespace headlab {

using Json = nlohmann::ordered_json;

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

}  // namespace headlab
