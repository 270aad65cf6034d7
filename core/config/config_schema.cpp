// Typed fields -> JSON schema. Types, limits and defaults are those of the fields' own `visit`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/config/config_fields.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

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
  if (read_value(integer, node, "", no, between(-0x1p63, 0x1p63))) return integer;
  if (read_value(number, node, "", no)) return number;
  return node.text;
}

Json bound(double value) {
  if (std::trunc(value) == value && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

// type: the word of a BlockField.
Json scalar_schema(const std::string& type, const Limits& given) {
  const Limits limits = type == "integer" ? integer_limits(given) : given;
  static const std::map<std::string, std::string> names = {
      {"bool", "boolean"}, {"integer", "integer"}, {"number", "number"}};
  const auto name = names.find(type);
  Json schema{{"type", name == names.end() ? "string" : name->second}};
  if (!limits.one_of.empty()) schema["enum"] = limits.one_of;
  if (limits.min) schema[limits.above_min ? "exclusiveMinimum" : "minimum"] = bound(*limits.min);
  if (limits.max) schema[limits.below_max ? "exclusiveMaximum" : "maximum"] = bound(*limits.max);
  return schema;
}

Json object_schema(Json properties) {
  return {
      {"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
}

Json any_of(Json forms) { return forms.size() == 1 ? forms[0] : Json{{"anyOf", std::move(forms)}}; }

// Kinds whose options hold kinds again would never end, so each stands once under `$defs`.
class SchemaWriter {
 public:
  Json properties_of(Block& block);
  Json custom_schema(const CustomField& field);
  // `{kind: <kind>, ...}`, where `kind` itself is left to the caller to require.
  Json kind_schema(const std::string& kind, Block& options);
  std::string definition(const KindRegistry& registry, const std::string& kind);  // its address

  Json definitions = Json::object();

 private:
  std::vector<const KindRegistry*> families_;
};

class FormSchemas : public Forms {
 public:
  explicit FormSchemas(SchemaWriter& writer) : writer_(writer) {}

  void integer(const Limits& limits) override { add(scalar_schema("integer", limits)); }
  void number(const Limits& limits) override { add(scalar_schema("number", limits)); }
  void word(const std::vector<std::string>& words) override { add({{"enum", words}}); }
  void mapping(Block& block) override { add(object_schema(writer_.properties_of(block))); }

  void kind(const std::string& kind, Block& options, bool usual) override {
    Json schema = writer_.kind_schema(kind, options);
    if (!usual) schema["required"] = {"kind"};
    add(std::move(schema));
  }

  void kinds(const KindRegistry& registry, const std::string& usual) override {
    word(registry.names());
    for (const std::string& kind : registry.names()) {
      Json schema{{"$ref", writer_.definition(registry, kind)}};
      if (!usual.empty() && kind != usual) schema["required"] = {"kind"};
      add(std::move(schema));
    }
  }

  void entries(const std::string& key_pattern, const std::function<void(Forms&)>& value) override {
    FormSchemas values(writer_);
    value(values);
    add({{"type", "object"},
         {"patternProperties", {{key_pattern, values.schema()}}},
         {"additionalProperties", false}});
  }

  Json schema() const { return any_of(forms_); }

 private:
  void add(Json form) { forms_.push_back(std::move(form)); }

  SchemaWriter& writer_;
  Json forms_ = Json::array();
};

Json SchemaWriter::properties_of(Block& block) {
  Json properties = Json::object();
  for (const BlockField& field : fields_of(block)) {
    Json schema;
    if (field.block) {
      schema = object_schema(properties_of(*field.block));
    } else if (field.custom) {
      schema = custom_schema(*field.custom);
    } else {
      schema = scalar_schema(field.type, field.limits);
      if (field.list) schema = any_of({schema, {{"type", "array"}, {"items", schema}}});
    }
    schema["description"] = field.help;
    if (field.value && !field.block)
      schema["default"] = to_json(field.custom ? field.custom->write_minimal() : *field.value);
    properties[field.name] = std::move(schema);
  }
  return properties;
}

Json SchemaWriter::custom_schema(const CustomField& field) {
  FormSchemas forms(*this);
  field.forms(forms);
  return forms.schema();
}

Json SchemaWriter::kind_schema(const std::string& kind, Block& options) {
  Json properties{{"kind", {{"const", kind}}}};
  Json own = properties_of(options);
  own.erase("kind");  // a block that names it itself allows every kind there
  properties.update(own);
  return object_schema(std::move(properties));
}

std::string SchemaWriter::definition(const KindRegistry& registry, const std::string& kind) {
  const size_t family =
      std::find(families_.begin(), families_.end(), &registry) - families_.begin();
  if (family == families_.size()) families_.push_back(&registry);
  const std::string id = fmt::format("{}.{}", family, kind);
  if (!definitions.contains(id)) {
    definitions[id] = nullptr;  // being made
    Json schema = kind_schema(kind, *registry.options(kind));
    definitions[id] = std::move(schema);
  }
  return "#/$defs/" + id;
}

}  // namespace

std::string schema_of(Block& block) {
  SchemaWriter writer;
  Json properties{{"extends",
                   {{"type", "string"},
                    {"description", "file whose settings hold where this one says nothing"}}}};
  properties.update(writer.properties_of(block));
  Json schema{{"$schema", "https://json-schema.org/draft/2020-12/schema"}};
  schema.update(object_schema(std::move(properties)));
  if (!writer.definitions.empty()) schema["$defs"] = std::move(writer.definitions);
  return schema.dump(2);
}

}  // namespace headlab
