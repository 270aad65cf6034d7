// Typed fields -> JSON schema. Types, limits and defaults are those of the fields' own `visit`.
#include "experiments/files/config_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/config/config_fields.h"
#include "experiments/files/schema_values.h"

namespace headlab {
namespace {

using Json = SchemaJson;

constexpr const char* kDraft = "https://json-schema.org/draft/2020-12/schema";

// What a kind may be where none is written: the usual one, or any, since the file that is extended,
// or the base of a sweep, names it.
enum class Unnamed { kUsual, kAny };

// What stands under `$defs`: kinds whose options hold kinds again would never end.
struct Definitions {
  Json schemas = Json::object();
  std::set<std::string> in_work;
  std::vector<const KindRegistry*> families;

  size_t family(const KindRegistry& registry) {
    const auto found = std::ranges::find(families, &registry);
    const auto number = static_cast<size_t>(found - families.begin());
    if (found == families.end()) families.push_back(&registry);
    return number;
  }
};

Json reference(const std::string& id) { return {{"$ref", "#/$defs/" + id}}; }

class SchemaWriter {
 public:
  SchemaWriter(Definitions& definitions, Unnamed unnamed)
      : definitions_(definitions), unnamed_(unnamed) {}

  SchemaProperties properties_of(Block& block) {
    SchemaProperties properties;
    for (const BlockField& field : fields_of(block)) {
      ValueSchema value;
      if (field.block)
        value.add("object", object_of(properties_of(*field.block)));
      else if (field.custom)
        value = custom(*field.custom);
      else
        value = plain(field);
      value.notes["description"] = field.help;
      if (field.value && !field.block)
        value.notes["default"] =
            json_of(field.custom ? field.custom->write_minimal() : *field.value);
      properties.emplace_back(field.name, std::move(value));
    }
    return properties;
  }

  Json kinds(const std::vector<KindSchema>& kinds, const std::string& usual) const {
    const auto is_usual = [&](const auto& kind) { return kind.name == usual; };
    const auto found = std::ranges::find_if(kinds, is_usual);
    const bool any = unnamed_ == Unnamed::kAny || found == kinds.end();
    return kinds_schema(kinds, any ? any_kind(kinds) : object_of(found->properties));
  }

  // A mapping of a family's kinds: a reference to it.
  Json family(const KindRegistry& registry, const std::string& usual) {
    const bool any = unnamed_ == Unnamed::kAny;
    const auto number = definitions_.family(registry);
    const auto id = any             ? fmt::format("{}.extending", number)
                    : usual.empty() ? fmt::format("{}", number)
                                    : fmt::format("{}.or_{}", number, usual);
    if (!definitions_.schemas.contains(id) && definitions_.in_work.insert(id).second) {
      std::vector<KindSchema> all;
      for (const auto& kind : registry.names())
        all.push_back(
            {kind, reference(definition(registry, kind)), properties_of(*registry.options(kind))});
      definitions_.schemas[id] = kinds(all, usual);
    }
    return reference(id);
  }

 private:
  ValueSchema plain(const BlockField& field) const {
    ValueSchema value;
    const Json schema = scalar_schema(field.type, field.limits);
    const std::string type = schema["type"];
    value.add(type == "integer" ? "number" : type, schema);
    if (field.list) value.add("array", {{"type", "array"}, {"items", schema}});
    return value;
  }
  ValueSchema custom(const CustomField& field);

  // A kind's id. Where it holds no other kinds, it is the same whatever is not named.
  std::string definition(const KindRegistry& registry, const std::string& kind) {
    const auto id = fmt::format("{}.{}", definitions_.family(registry), kind);
    const auto write = [&](SchemaWriter writer) {
      return with_kind(kind, writer.properties_of(*registry.options(kind)));
    };
    if (!definitions_.schemas.contains(id) && definitions_.in_work.insert(id).second)
      definitions_.schemas[id] = write({definitions_, Unnamed::kUsual});
    if (unnamed_ == Unnamed::kUsual) return id;
    const auto extending = id + ".extending";
    if (definitions_.schemas.contains(extending) || !definitions_.in_work.insert(extending).second)
      return extending;
    const auto schema = write(*this);
    definitions_.in_work.erase(extending);
    if (definitions_.schemas.contains(id) && definitions_.schemas[id] == schema) return id;
    definitions_.schemas[extending] = schema;
    return extending;
  }

  Definitions& definitions_;
  Unnamed unnamed_;
};

// The forms of one value.
class FormSchemas : public Forms {
 public:
  explicit FormSchemas(SchemaWriter& writer) : writer_(writer) {}

  void integer(const Limits& limits) override { whole_ = scalar_schema("integer", limits); }
  void number(const Limits& limits) override { number_ = scalar_schema("number", limits); }
  void word(const std::vector<std::string>& words) override {
    value_.add("string", words.empty() ? Json{{"type", "string"}} : Json{{"enum", words}});
  }
  void mapping(Block& block) override {
    value_.add("object", object_of(writer_.properties_of(block)));
  }
  void kind(const std::string& kind, Block& options, bool usual) override {
    auto properties = writer_.properties_of(options);
    std::erase_if(properties, [](const auto& property) { return property.first == "kind"; });
    kinds_.push_back({kind, with_kind(kind, properties), properties});
    if (usual) usual_ = kind;
  }
  void kinds(const KindRegistry& registry, const std::string& usual) override {
    word(registry.names());
    value_.add("object", writer_.family(registry, usual));
  }
  void entries(const std::string& key_pattern, const std::function<void(Forms&)>& value) override {
    FormSchemas values(writer_);
    value(values);
    value_.add("object", {{"type", "object"},
                          {"patternProperties", {{key_pattern, values.value().schema()}}},
                          {"additionalProperties", false}});
  }

  ValueSchema value() const {
    auto made = value_;
    if (whole_ && number_)
      made.add("number", {{"if", {{"multipleOf", 1}}}, {"then", *whole_}, {"else", *number_}});
    else if (whole_ || number_)
      made.add("number", whole_ ? *whole_ : *number_);
    if (!kinds_.empty()) made.add("object", writer_.kinds(kinds_, usual_));
    return made;
  }

 private:
  SchemaWriter& writer_;
  ValueSchema value_;
  std::optional<Json> whole_, number_;
  std::vector<KindSchema> kinds_;
  std::string usual_;
};

ValueSchema SchemaWriter::custom(const CustomField& field) {
  FormSchemas forms(*this);
  field.forms(forms);
  return forms.value();
}

// Every path of a block, through its blocks and the kinds of its values.
class SettingPaths {
 public:
  explicit SettingPaths(Definitions& definitions) : writer_(definitions, Unnamed::kAny) {}

  void add(Block& block, const std::string& above) {
    SchemaProperties here = writer_.properties_of(block);
    for (auto& property : here) property.first = above + property.first;
    join(found, here);
    for (const BlockField& field : fields_of(block)) {
      const auto below = above + field.name + ".";
      if (field.block) add(*field.block, below);
      if (!field.custom) continue;
      PathForms forms(*this, below);
      field.custom->forms(forms);
    }
  }

  SchemaProperties found;
  std::set<std::string> open;  // below these any path is one

 private:
  class PathForms : public Forms {
   public:
    PathForms(SettingPaths& paths, std::string below) : paths_(paths), below_(std::move(below)) {}
    void mapping(Block& block) override { paths_.add(block, below_); }
    void kind(const std::string&, Block& options, bool) override { paths_.add(options, below_); }
    void kinds(const KindRegistry& registry, const std::string&) override {
      auto& inside = paths_.inside_;
      if (std::ranges::find(inside, &registry) != inside.end()) {
        paths_.open.insert(below_);  // kinds in kinds of their family would never end
        return;
      }
      inside.push_back(&registry);
      ValueSchema names;
      names.add("string", {{"enum", registry.names()}});
      join(paths_.found, {{below_ + "kind", names}});
      for (const auto& kind : registry.names()) paths_.add(*registry.options(kind), below_);
      inside.pop_back();
    }
    void entries(const std::string&, const std::function<void(Forms&)>&) override {
      paths_.open.insert(below_);
    }

   private:
    SettingPaths& paths_;
    std::string below_;
  };

  SchemaWriter writer_;
  std::vector<const KindRegistry*> inside_;
};

}  // namespace

SettingsSchema::SettingsSchema(Block& root) {
  Definitions definitions;
  SettingPaths paths(definitions);
  paths.add(root, "");
  for (const auto& [path, value] : paths.found) {
    definitions.schemas["set." + path] = value.schema();
    settings_[path] = reference("set." + path);
  }
  for (std::string path : paths.open) {
    for (size_t dot = 0; (dot = path.find('.', dot)) != path.npos; dot += 2) path.insert(dot, "\\");
    patterns_["^" + path] = Json::object();
  }
  definitions_ = std::move(definitions.schemas);
}

SchemaJson SettingsSchema::paths(const std::function<SchemaJson(SchemaJson)>& of) const {
  Json properties = Json::object(), patterns = Json::object();
  for (const auto& [path, schema] : settings_.items()) properties[path] = of(schema);
  for (const auto& [pattern, any] : patterns_.items()) patterns[pattern] = of(any);
  Json schema = object_schema(std::move(properties));
  schema["patternProperties"] = std::move(patterns);
  return schema;
}

SchemaJson SettingsSchema::at(const std::string& path) const { return settings_.at(path); }

std::string SettingsSchema::file(SchemaJson properties,
                                 const std::vector<std::string>& required) const {
  Json schema{{"$schema", kDraft}};
  schema.update(object_schema(std::move(properties), required));
  schema["$defs"] = definitions_;
  return schema.dump(2);
}

std::string schema_of(Block& block) {
  Definitions definitions;
  const auto whole = SchemaWriter(definitions, Unnamed::kUsual).properties_of(block);
  const auto extending = SchemaWriter(definitions, Unnamed::kAny).properties_of(block);
  Json properties{{"extends",
                   {{"type", "string"},
                    {"description", "file whose settings hold where this one says nothing"}}}};
  Json of_whole = Json::object(), of_extending = Json::object();
  for (size_t n = 0; n < whole.size(); ++n) {
    const auto& [name, value] = whole[n];
    properties[name] = value.schema();
    if (properties[name] == extending[n].second.schema()) continue;
    of_whole[name] = std::exchange(properties[name], value.notes);
    of_extending[name] = extending[n].second.schema();
  }
  Json schema{{"$schema", kDraft}};
  schema.update(object_schema(std::move(properties)));
  if (!of_whole.empty()) {
    schema["if"] = {{"required", Json::array({"extends"})}};
    schema["then"] = {{"properties", of_extending}};
    schema["else"] = {{"properties", of_whole}};
  }
  if (!definitions.schemas.empty()) schema["$defs"] = std::move(definitions.schemas);
  return schema.dump(2);
}

}  // namespace headlab
