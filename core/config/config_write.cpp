// Typed fields -> nodes, tables and JSON schema.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/config/config_visit.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// One field as it stands. `type` is the word for one item; block and custom are set for those.
struct Field {
  std::string name, help, type;
  bool list = false;
  Limits limits;
  std::optional<ConfigNode> value = std::nullopt;  // absent: an empty optional, a path not set
  Block* block = nullptr;
  CustomField* custom = nullptr;
};

ConfigNode full(Block& block);

class Collector : public EachField<Collector> {
 public:
  std::vector<Field> fields;

  template <class T>
  void field(const char* name, T& value, const char* help, const Limits& limits) {
    fields.push_back({.name = name, .help = help, .type = "", .limits = limits});
    collect(fields.back(), value);
  }

 private:
  static void collect(Field& f, bool v) { f.type = "bool", f.value = write_bool(v); }
  static void collect(Field& f, int64_t v) { f.type = "integer", f.value = write_integer(v); }
  static void collect(Field& f, double v) { f.type = "number", f.value = write_number(v); }
  static void collect(Field& f, const std::string& v) { f.type = "text", f.value = write_text(v); }
  static void collect(Field& f, const FilePath& v) {
    f.type = "path";
    if (!v.written.empty()) f.value = write_path(v);
  }
  static void collect(Field& f, Block& v) { f.block = &v, f.value = full(v); }
  static void collect(Field& f, CustomField& v) {
    f.type = v.type(), f.custom = &v, f.value = v.write();
  }
  template <class T>
  static void collect(Field& f, const std::optional<T>& v) {
    collect(f, v.value_or(T{}));
    if (!v) f.value.reset();
  }
  template <class T>
  static void collect(Field& f, const std::vector<T>& v) {
    collect(f, T{});
    f.list = true;
    ConfigNode list;
    list.kind = ConfigNode::Kind::kSequence;
    for (const T& item : v) {
      Field one;
      collect(one, item);
      list.items.push_back(std::move(*one.value));
    }
    f.value = std::move(list);
  }
};

std::vector<Field> fields_of(Block& block) {
  Collector collector;
  block.visit(collector);
  return std::move(collector.fields);
}

ConfigNode full(Block& block) {
  ConfigNode node;
  for (Field& field : fields_of(block)) {
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
  const std::vector<Field> usual = fields_of(defaults);
  for (const Field& field : fields_of(block)) {
    const auto match = std::find_if(usual.begin(), usual.end(),
                                    [&](const Field& f) { return f.name == field.name; });
    if (!field.value || (match != usual.end() && same(field.value, match->value))) continue;
    if (field.block && match != usual.end()) {
      node.set(field.name, minimal(*field.block, *match->block));
    } else {
      node.set(field.name, field.custom ? field.custom->write_minimal() : *field.value);
    }
  }
  return node;
}

void describe(Block& block, const std::string& prefix, std::vector<FieldInfo>& table) {
  for (const Field& f : fields_of(block)) {
    if (f.block) {
      describe(*f.block, prefix + f.name + '.', table);
      continue;
    }
    const std::string type = f.list ? "list of " + f.type + 's' : f.type;
    std::string value;
    if (f.custom) {
      value = to_flow(f.custom->write_minimal());
    } else if (f.value) {
      value = to_flow(*f.value);
    }
    table.push_back({prefix + f.name, type, value, limits_text(f.limits), f.help});
  }
}

// A scalar has the JSON type that its text has in YAML.
Json to_json(const ConfigNode& node) {
  Problems no;  // not of this type: not a problem
  int64_t integer = 0;
  double number = 0;
  bool truth = false;
  switch (node.kind) {
    case ConfigNode::Kind::kNull:
      return nullptr;
    case ConfigNode::Kind::kSequence: {
      Json list = Json::array();
      for (const ConfigNode& item : node.items) list.push_back(to_json(item));
      return list;
    }
    case ConfigNode::Kind::kMapping: {
      Json object = Json::object();
      for (const auto& [key, value] : node.entries) object[key] = to_json(value);
      return object;
    }
    case ConfigNode::Kind::kScalar:
      break;
  }
  if (read_value(truth, node, "", no)) return truth;
  if (read_value(integer, node, "", no)) return integer;
  if (read_value(number, node, "", no)) return number;
  return node.text;
}

Json bound(double value) {
  if (std::trunc(value) == value && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

Json item_schema(const Field& field) {
  static const std::map<std::string, std::string> names = {
      {"bool", "boolean"}, {"integer", "integer"}, {"number", "number"}};
  const auto name = names.find(field.type);
  Json schema{{"type", name == names.end() ? "string" : name->second}};
  const Limits& l = field.limits;
  if (!l.one_of.empty()) schema["enum"] = l.one_of;
  if (l.min) schema[l.above_min ? "exclusiveMinimum" : "minimum"] = bound(*l.min);
  if (l.max) schema[l.below_max ? "exclusiveMaximum" : "maximum"] = bound(*l.max);
  return schema;
}

Json properties_of(Block& block);

Json object_schema(Json properties) {
  return {
      {"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
}

Json properties_of(Block& block) {
  Json properties = Json::object();
  for (const Field& field : fields_of(block)) {
    Json schema;
    if (field.block) {
      schema = object_schema(properties_of(*field.block));
    } else if (field.custom) {
      schema = Json::parse(field.custom->schema());
    } else if (field.list) {
      const Json item = item_schema(field);
      schema["anyOf"] = {item, {{"type", "array"}, {"items", item}}};
    } else {
      schema = item_schema(field);
    }
    schema["description"] = field.help;
    if (field.custom) {
      schema["default"] = to_json(field.custom->write_minimal());
    } else if (field.value && !field.block) {
      schema["default"] = to_json(*field.value);
    }
    properties[field.name] = std::move(schema);
  }
  return properties;
}

// Kinds whose options hold kinds again would never end, so each stands once under `$defs` of the
// outermost schema. The scope belongs to the call that opened it.
struct Definitions {
  Json schemas = Json::object();
  std::vector<const KindRegistry*> registries;
};
thread_local Definitions* open_definitions = nullptr;

// Calls `make` with definitions open, and adds them when this call was the one that opened them.
template <class Make>
Json with_definitions(const Make& make) {
  if (open_definitions) return make(*open_definitions);
  struct Scope {
    Definitions definitions;
    Scope() { open_definitions = &definitions; }
    ~Scope() { open_definitions = nullptr; }
  } scope;
  Json schema = make(scope.definitions);
  if (!scope.definitions.schemas.empty()) schema["$defs"] = std::move(scope.definitions.schemas);
  return schema;
}

Json kind_schemas(const KindRegistry& registry, const std::string& usual,
                  Definitions& definitions) {
  auto& all = definitions.registries;
  const size_t family = std::find(all.begin(), all.end(), &registry) - all.begin();
  if (family == all.size()) all.push_back(&registry);

  Json choices = Json::array({{{"enum", registry.names()}}});
  for (const std::string& kind : registry.names()) {
    const std::string id = fmt::format("{}.{}", family, kind);
    if (!definitions.schemas.contains(id)) {
      definitions.schemas[id] = nullptr;  // being made
      Json properties{{"kind", {{"const", kind}}}};
      properties.update(properties_of(*registry.options(kind)));
      definitions.schemas[id] = object_schema(std::move(properties));
    }
    Json choice{{"$ref", "#/$defs/" + id}};
    if (kind != usual) choice["required"] = {"kind"};
    choices.push_back(std::move(choice));
  }
  return {{"oneOf", std::move(choices)}};
}

ConfigNode kind_node(const std::string& kind, ConfigNode options) {
  ConfigNode node;
  node.set("kind", write_text(kind));
  for (auto& [key, value] : options.entries) node.set(key, std::move(value));
  return node;
}

}  // namespace

ConfigNode write_block(Block& block, Paths paths) { return with_paths(full(block), paths); }

ConfigNode write_minimal(Block& block, Block& defaults, Paths paths) {
  return with_paths(minimal(block, defaults), paths);
}

std::vector<FieldInfo> describe_block(Block& block) {
  std::vector<FieldInfo> table;
  describe(block, "", table);
  return table;
}

std::string schema_of(Block& block) {
  return with_definitions([&](Definitions&) {
           Json properties{
               {"extends",
                {{"type", "string"},
                 {"description", "file whose settings hold where this one says nothing"}}}};
           properties.update(properties_of(block));
           Json schema{{"$schema", "https://json-schema.org/draft/2020-12/schema"}};
           schema.update(object_schema(std::move(properties)));
           return schema;
         })
      .dump(2);
}

ConfigNode KindBlock::write() const { return kind_node(kind_, full(*options_)); }

ConfigNode KindBlock::write_minimal() const {
  return kind_node(kind_, minimal(*options_, *registry_->options(kind_)));
}

std::string KindBlock::schema() const {
  return with_definitions(
             [&](Definitions& definitions) { return kind_schemas(*registry_, kind_, definitions); })
      .dump();
}

}  // namespace headlab
