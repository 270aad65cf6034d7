#include "experiments/commands/config_description.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/head_kinds.h"
#include "experiments/data/source.h"
#include "experiments/models/model.h"
#include "experiments/runs/experiment.h"

namespace headlab {
namespace {

// "attention" is model.attention too.
bool ends_in(const std::string& path, const std::string& word) {
  return path == word || path.ends_with('.' + word);
}

}  // namespace

std::vector<KeyTable> experiment_tables() {
  Experiment experiment;
  return key_tables(experiment);
}

std::string summary_of(const KeyTable& table) {
  if (table.family == &head_registry()) return head_kind(table.kind).summary;
  if (table.family == &data_registry()) return data_kind(table.kind).summary;
  if (table.family == &model_registry()) return model_kind(table.kind).summary;
  return "";
}

std::string title_of(const KeyTable& table) {
  if (!table.kind.empty()) return fmt::format("{}.kind: {}", table.path, table.kind);
  if (table.path.empty()) return "top of the file";
  return table.within.empty() ? table.path : fmt::format("{}, of {}", table.path, table.within);
}

std::vector<KeyTable> tables_called(const std::string& word) {
  const auto all = experiment_tables();
  std::vector<KeyTable> found;
  for (const auto& table : all)
    if (!table.path.empty() && (table.kind == word || ends_in(table.path, word)))
      found.push_back(table);
  if (!found.empty()) return found;
  for (const auto& table : all) {  // keys, or what stands below one: train.checkpoint
    KeyTable part = table;
    std::erase_if(part.fields, [&](const FieldInfo& field) {
      const std::string key = '.' + table.key(field) + '.';
      return key.find('.' + word + '.') == key.npos;
    });
    if (!part.fields.empty()) found.push_back(std::move(part));
  }
  return found;
}

std::vector<std::string> words() {
  std::vector<std::string> known;
  const auto add = [&](const std::string& word) {
    if (!word.empty() && std::find(known.begin(), known.end(), word) == known.end())
      known.push_back(word);
  };
  const auto tables = experiment_tables();
  for (const auto& field : tables.front().fields) add(field.name);
  for (const auto& table : tables) add(table.kind);
  for (const auto& table : tables) add(table.path.substr(table.path.rfind('.') + 1));
  return known;
}

}  // namespace headlab
