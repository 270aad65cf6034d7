// The pieces that the JSON schemas of settings are made of. No torch in here.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "experiments/files/config_schema.h"

namespace headlab {

// What a value may be, by JSON's types. Of one type there are several where several kinds have a
// setting of the same name.
struct ValueSchema {
  std::vector<std::pair<std::string, std::vector<SchemaJson>>> forms = {};
  SchemaJson notes = SchemaJson::object();  // description and default

  void add(const std::string& type, SchemaJson schema);
  void join(const ValueSchema& other);
  SchemaJson schema() const;
};
using SchemaProperties = std::vector<std::pair<std::string, ValueSchema>>;
void join(SchemaProperties& all, const SchemaProperties& more);

// type: the word of a BlockField.
SchemaJson scalar_schema(const std::string& type, const Limits& limits);
SchemaJson object_of(const SchemaProperties& properties);  // a mapping of these keys alone
SchemaJson json_of(const ConfigNode& node);  // a scalar has the type that its text has in YAML

// A kind: the schema of a mapping that names it, and what else stands in one.
struct KindSchema {
  std::string name;
  SchemaJson schema;
  SchemaProperties properties;
};
// A mapping of one of these kinds; `absent`: the schema of one that names none.
SchemaJson kinds_schema(const std::vector<KindSchema>& kinds, SchemaJson absent);
SchemaJson any_kind(const std::vector<KindSchema>& kinds);  // one that names none, of any of them
SchemaJson with_kind(const std::string& kind, SchemaProperties properties);  // of one that does

}  // namespace headlab
