#include "experiments/files/schema_values.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "core/config/config_fields.h"

namespace headlab {
namespace {

using Json = SchemaJson;

Json bound(double value) {
  if (std::trunc(value) == value && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

// The lowest of all lower bounds, or the highest of all upper ones; nothing where one has none.
void loosen_bound(Json& made, const std::vector<Json>& schemas, const char* open,
                  const char* closed, bool lower) {
  std::optional<double> loosest;
  bool is_open = true;
  for (const auto& schema : schemas) {
    const bool excluded = schema.contains(open);
    if (!excluded && !schema.contains(closed)) return;
    const double value = schema[excluded ? open : closed];
    if (loosest && value == *loosest) {
      is_open = is_open && excluded;
    } else if (!loosest || (value < *loosest) == lower) {
      loosest = value, is_open = excluded;
    }
  }
  if (loosest) made[is_open ? open : closed] = bound(*loosest);
}

// What any of these schemas of one type allows, as one schema, so that an error is not about none
// of many. Of numbers, words and lists of them; else any of them as they are.
Json loosest(const std::vector<Json>& schemas) {
  if (schemas.size() == 1) return schemas[0];
  const auto all = [&](auto is) { return std::ranges::all_of(schemas, is); };
  if (all([](const Json& one) { return one.contains("items"); })) {
    std::vector<Json> items;
    for (const auto& one : schemas)
      if (std::ranges::find(items, one["items"]) == items.end()) items.push_back(one["items"]);
    return {{"type", "array"}, {"items", loosest(items)}};
  }
  const auto type = [](const Json& one) { return one.value("type", std::string("string")); };
  const auto is_scalar = [&](const Json& one) {
    return !one.contains("if") && !one.contains("$ref") && type(one) != "object" &&
           type(one) != "array";
  };
  if (!all(is_scalar)) return {{"anyOf", schemas}};
  const auto first = type(schemas[0]);
  const bool same = all([&](const Json& one) { return type(one) == first; });
  Json made{{"type", same ? first : "number"}};
  if (all([](const Json& one) { return one.contains("enum"); })) {
    made["enum"] = Json::array();
    for (const auto& one : schemas)
      for (const auto& word : one["enum"])
        if (std::ranges::find(made["enum"], word) == made["enum"].end()) made["enum"] += word;
  }
  loosen_bound(made, schemas, "exclusiveMinimum", "minimum", /*lower=*/true);
  loosen_bound(made, schemas, "exclusiveMaximum", "maximum", /*lower=*/false);
  return made;
}

}  // namespace

SchemaJson json_of(const ConfigNode& node) {
  Problems no;  // not of this type: not a problem
  int64_t integer = 0;
  double number = 0;
  bool truth = false;
  switch (node.kind) {
    case ConfigNode::Kind::kNull:
      return nullptr;
    case ConfigNode::Kind::kSequence: {
      Json list = Json::array();
      for (const ConfigNode& item : node.items) list.push_back(json_of(item));
      return list;
    }
    case ConfigNode::Kind::kMapping: {
      Json object = Json::object();
      for (const auto& [key, value] : node.entries) object[key] = json_of(value);
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

SchemaJson scalar_schema(const std::string& type, const Limits& given) {
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

void ValueSchema::add(const std::string& type, SchemaJson schema) {
  auto place = std::ranges::find(forms, type, [](const auto& form) { return form.first; });
  if (place == forms.end()) place = forms.insert(forms.end(), {type, {}});
  auto& all = place->second;
  if (std::ranges::find(all, schema) == all.end()) all.push_back(std::move(schema));
}

void ValueSchema::join(const ValueSchema& other) {
  for (const auto& [type, schemas] : other.forms)
    for (const auto& schema : schemas) add(type, schema);
  if (notes != other.notes) notes.erase("default");
}

SchemaJson ValueSchema::schema() const {
  std::vector<std::pair<std::string, Json>> by_type;
  for (const auto& [type, schemas] : forms) by_type.emplace_back(type, loosest(schemas));
  Json made = schema_by_type(by_type);
  made.update(notes);
  return made;
}

void join(SchemaProperties& all, const SchemaProperties& more) {
  for (const auto& [name, value] : more) {
    const auto same = std::ranges::find(all, name, [](const auto& one) { return one.first; });
    same == all.end() ? void(all.emplace_back(name, value)) : same->second.join(value);
  }
}

SchemaJson object_of(const SchemaProperties& properties) {
  Json schemas = Json::object();
  for (const auto& [name, value] : properties) schemas[name] = value.schema();
  return object_schema(std::move(schemas));
}

SchemaJson kinds_schema(const std::vector<KindSchema>& kinds, SchemaJson absent) {
  Json names = Json::array(), cases = Json::array();
  for (const auto& kind : kinds) {
    names.push_back(kind.name);
    cases.push_back({{"if",
                      {{"properties", {{"kind", {{"const", kind.name}}}}},
                       {"required", Json::array({"kind"})}}},
                     {"then", kind.schema}});
  }
  cases.push_back(
      {{"if", {{"not", {{"required", Json::array({"kind"})}}}}}, {"then", std::move(absent)}});
  return {{"type", "object"}, {"properties", {{"kind", {{"enum", names}}}}}, {"allOf", cases}};
}

SchemaJson any_kind(const std::vector<KindSchema>& kinds) {
  SchemaProperties all;
  for (const auto& kind : kinds) join(all, kind.properties);
  return object_of(all);
}

SchemaJson with_kind(const std::string& kind, SchemaProperties properties) {
  // A block that names its kind itself allows every kind there.
  std::erase_if(properties, [](const auto& property) { return property.first == "kind"; });
  Json schema = object_of(properties);
  Json all{{"kind", {{"const", kind}}}};
  all.update(schema["properties"]);
  schema["properties"] = std::move(all);
  return schema;
}

SchemaJson object_schema(SchemaJson properties, const std::vector<std::string>& required) {
  Json schema{
      {"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
  if (!required.empty()) schema["required"] = required;
  return schema;
}

SchemaJson schema_by_type(const std::vector<std::pair<std::string, SchemaJson>>& forms) {
  if (forms.size() == 1) return forms[0].second;
  Json types = Json::array(), cases = Json::array();
  for (const auto& [type, schema] : forms) {
    types.push_back(type);
    cases.push_back({{"if", {{"type", type}}}, {"then", schema}});
  }
  return {{"type", types}, {"allOf", cases}};
}

SchemaJson one_or_list(const std::string& type, const SchemaJson& item) {
  return schema_by_type(
      {{type, item}, {"array", {{"type", "array"}, {"items", item}, {"minItems", 1}}}});
}

}  // namespace headlab
