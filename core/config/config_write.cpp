// Typed fields -> nodes.
#include <algorithm>

#include "core/config/config_fields.h"

namespace headlab {
namespace {

ConfigNode full(Block& block);

class Collector : public Fields {
 public:
  std::vector<BlockField> fields;

 private:
  void field(const char* name, FieldValue value, const char* help, const Limits& limits) override {
    fields.push_back({.name = name, .help = help, .type = "", .limits = limits});
    std::visit([&](auto* member) { collect(fields.back(), *member); }, value);
  }
  static void collect(BlockField& f, bool v) { f.type = "bool", f.value = write_bool(v); }
  static void collect(BlockField& f, int64_t v) { f.type = "integer", f.value = write_integer(v); }
  static void collect(BlockField& f, double v) { f.type = "number", f.value = write_number(v); }
  static void collect(BlockField& f, const std::string& v) {
    f.type = "text", f.value = write_text(v);
  }
  static void collect(BlockField& f, const FilePath& v) {
    f.type = "path";
    if (!v.written.empty()) f.value = write_path(v);
  }
  static void collect(BlockField& f, Block& v) { f.block = &v, f.value = full(v); }
  static void collect(BlockField& f, CustomField& v) {
    f.type = v.type(), f.custom = &v, f.value = v.write();
    if (f.value->kind == ConfigNode::Kind::kNull) f.value.reset();
  }
  template <class T>
  static void collect(BlockField& f, const std::optional<T>& v) {
    collect(f, v.value_or(T{}));
    if (!v) f.value.reset();
  }
  template <class T>
  static void collect(BlockField& f, const std::vector<T>& v) {
    collect(f, T{});
    f.list = true;
    ConfigNode list(ConfigNode::Kind::kSequence, {});
    for (const T& item : v) {
      BlockField one;
      collect(one, item);
      list.items.push_back(std::move(*one.value));
    }
    f.value = std::move(list);
  }
};

ConfigNode full(Block& block) {
  ConfigNode node;
  for (BlockField& field : fields_of(block)) {
    if (field.value) node.set(field.name, std::move(*field.value));
  }
  return node;
}

ConfigNode with_paths(ConfigNode node, Paths paths) {
  if (!node.absolute.empty() && paths == Paths::kAbsolute) node = write_text(node.absolute);
  for (ConfigNode& item : node.items) item = with_paths(std::move(item), paths);
  for (auto& [key, value] : node.entries) value = with_paths(std::move(value), paths);
  return node;
}

// The same file, whatever it is called: paths compare by where they lead.
bool same(const std::optional<ConfigNode>& a, const std::optional<ConfigNode>& b) {
  if (!a || !b) return !a && !b;
  return with_paths(*a, Paths::kAbsolute) == with_paths(*b, Paths::kAbsolute);
}

ConfigNode minimal(Block& block, Block& defaults) {
  ConfigNode node;
  const std::vector<BlockField> usual = fields_of(defaults);
  for (const BlockField& field : fields_of(block)) {
    const auto match = std::find_if(usual.begin(), usual.end(),
                                    [&](const BlockField& f) { return f.name == field.name; });
    if (!field.value || (match != usual.end() && same(field.value, match->value))) continue;
    if (field.block && match != usual.end()) {
      node.set(field.name, minimal(*field.block, *match->block));
    } else {
      node.set(field.name, field.custom ? field.custom->write_minimal() : *field.value);
    }
  }
  return node;
}

ConfigNode kind_node(const std::string& kind, ConfigNode options) {
  ConfigNode node;
  node.set("kind", write_text(kind));
  for (auto& [key, value] : options.entries) node.set(key, std::move(value));
  return node;
}

}  // namespace

std::vector<BlockField> fields_of(Block& block) {
  Collector collector;
  block.visit_all(collector);
  return std::move(collector.fields);
}

ConfigNode write_block(Block& block, Paths paths) { return with_paths(full(block), paths); }

ConfigNode write_minimal(Block& block, Block& defaults, Paths paths) {
  return with_paths(minimal(block, defaults), paths);
}

ConfigNode KindBlock::write() const { return kind_node(kind_, full(*options_)); }

ConfigNode KindBlock::write_minimal() const {
  return kind_node(kind_, minimal(*options_, *registry_->options(kind_)));
}

}  // namespace headlab
