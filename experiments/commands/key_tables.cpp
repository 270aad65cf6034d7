#include "experiments/commands/key_tables.h"

#include <algorithm>

#include "core/config/config_fields.h"

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

}  // namespace

std::vector<KeyTable> key_tables(Block& root) {
  Tables tables;
  tables.add_top(root);
  return std::move(tables.found);
}

}  // namespace headlab
