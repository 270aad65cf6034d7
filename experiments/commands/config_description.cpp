#include "experiments/commands/config_description.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/config/config_fields.h"
#include "core/head_kinds.h"
#include "experiments/data/source.h"
#include "experiments/models/model.h"
#include "experiments/runs/experiment.h"

namespace headlab {
namespace {

class Tables {
 public:
  std::vector<KeyTable> found;

  void add_top(Block& root) {
    KeyTable top;
    for (const FieldInfo& field : describe_block(root))
      if (field.name.find('.') == field.name.npos) top.fields.push_back(field);
    found.push_back(std::move(top));
    for (const BlockField& field : fields_of(root)) {
      if (field.block) add({.path = field.name, .help = field.help}, *field.block);
      if (field.custom) add_forms({.path = field.name, .help = field.help}, *field.custom);
    }
  }

 private:
  // `table` says where and of what; its fields are those of the block.
  void add(KeyTable table, Block& block) {
    table.fields = describe_block(block);
    const bool empty = std::all_of(table.fields.begin(), table.fields.end(),
                                   [](const FieldInfo& field) { return field.name == "kind"; });
    if (!empty || table.family) found.push_back(table);
    add_forms_within(table.path, table.kind.empty() ? table.within : table.kind, block);
  }

  void add_forms_within(const std::string& path, const std::string& kind, Block& block) {
    for (const BlockField& field : fields_of(block)) {
      const std::string below = path + '.' + field.name;
      if (field.block) add_forms_within(below, kind, *field.block);
      if (field.custom)
        add_forms({.path = below, .help = field.help, .within = kind}, *field.custom);
    }
  }

  class TableForms : public Forms {
   public:
    TableForms(Tables& tables, KeyTable base) : tables_(tables), base_(std::move(base)) {}
    void mapping(Block& block) override { tables_.add(base_, block); }
    void kind(const std::string& kind, Block& options, bool) override {
      KeyTable table = base_;
      table.kind = kind;
      tables_.add(std::move(table), options);
    }
    void kinds(const KindRegistry& registry, const std::string&) override {
      auto& entered = tables_.entered_;
      if (std::find(entered.begin(), entered.end(), &registry) != entered.end()) return;
      entered.push_back(&registry);
      for (const std::string& kind : registry.names()) {
        KeyTable table = base_;
        table.kind = kind, table.family = &registry;
        tables_.add(std::move(table), *registry.options(kind));
      }
    }

   private:
    Tables& tables_;
    KeyTable base_;
  };

  void add_forms(KeyTable base, const CustomField& field) {
    TableForms forms(*this, std::move(base));
    field.forms(forms);
  }

  std::vector<const KindRegistry*> entered_;
};

// "attention" is model.attention too.
bool ends_in(const std::string& path, const std::string& word) {
  return path == word || path.ends_with('.' + word);
}

}  // namespace

std::vector<KeyTable> experiment_tables() {
  Experiment experiment;
  Tables tables;
  tables.add_top(experiment);
  return std::move(tables.found);
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
