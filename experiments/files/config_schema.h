// JSON schemas (draft 2020-12) of typed settings, for editors: of a config, see schema_of(), and of
// files that name settings by their paths. No torch in here.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/config/config.h"

namespace headlab {

using SchemaJson = nlohmann::ordered_json;

// JSON schema (draft 2020-12) of a file with this block at the top (so `extends` is allowed), as
// JSON text.
std::string schema_of(Block& block);

// A mapping of these keys and no others.
SchemaJson object_schema(SchemaJson properties, const std::vector<std::string>& required = {});

// A value of one of several of JSON's types, each with a schema of its own. `if` and `then` pick it
// by the value's type, so that an error is about what was written, and not that none of many forms
// fits. "number" stands for integers, too.
SchemaJson schema_by_type(const std::vector<std::pair<std::string, SchemaJson>>& forms);
// A value of this type, or a list of some.
SchemaJson one_or_list(const std::string& type, const SchemaJson& item);

// Settings of a config that other files name by their paths, as sweeps do: "train.lr". Where a kind
// has to be known and is not written, the keys of any kind are allowed.
class SettingsSchema {
 public:
  explicit SettingsSchema(Block& root);

  // A mapping of paths to values; `of` makes a value's schema of the setting's.
  SchemaJson paths(const std::function<SchemaJson(SchemaJson)>& of) const;
  SchemaJson at(const std::string& path) const;  // of one setting

  // The schema of a file of these keys, which hold what the above gave, as JSON text.
  std::string file(SchemaJson properties, const std::vector<std::string>& required) const;

 private:
  SchemaJson settings_ = SchemaJson::object(), patterns_ = SchemaJson::object();
  SchemaJson definitions_ = SchemaJson::object();
};

}  // namespace headlab
