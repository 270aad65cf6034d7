// docs/config.md: every section and key of a config.
#include <fmt/format.h>

#include "core/head_kinds.h"
#include "experiments/commands/config_description.h"
#include "experiments/commands/reference_pages.h"

namespace headlab {
namespace {

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

}  // namespace

Table table_of_texts(const std::vector<std::string>& titles) {
  std::vector<Column> columns;
  for (const auto& title : titles) columns.push_back({.title = title, .is_text = true});
  return Table(std::move(columns));
}

std::string code(const std::string& text) { return text.empty() ? "" : '`' + text + '`'; }

std::string cell(const std::string& text) { return code(replaced(text, " | ", "`, `")); }

std::string field_table(const std::vector<FieldInfo>& fields) {
  auto table = table_of_texts({"key", "type", "default", "allowed", "what"});
  for (const auto& f : fields)
    table.add({code(f.name), f.type, cell(f.default_text), cell(f.limits), f.help});
  return table.markdown();
}

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

}  // namespace headlab
