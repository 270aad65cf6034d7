#include "experiments/commands/completion_words.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "experiments/files/config_schema.h"
#include "experiments/runs/experiment.h"

namespace headlab {
namespace {

using Json = nlohmann::json;

// Goes through a JSON schema. A kind that holds kinds again is not entered inside of itself, nor is
// a mapping that names no kind, whose keys are those of kinds.
class SchemaWords {
 public:
  explicit SchemaWords(const Json& schema) : definitions_(schema.value("$defs", Json::object())) {}

  void walk(const Json& node, const std::string& path) {
    for (const char* forms : {"anyOf", "allOf"})
      for (const Json& form : node.value(forms, Json::array())) walk(form, path);
    const bool unnamed = node.value("if", Json::object()).contains("not");
    for (const char* branch : {"then", "else"})
      if (node.contains(branch) && !unnamed) walk(node[branch], path);
    if (node.contains("$ref")) enter(node["$ref"].get<std::string>(), path);
    const Json properties = node.value("properties", Json::object());
    const bool of_kinds = node.contains("allOf");  // each of them says its own
    for (const auto& [name, value] : properties.items()) {
      if (of_kinds && name == "kind") continue;
      std::string key = path;
      if (!key.empty()) key += '.';
      walk(value, key += name);
    }
    for (const char* below : {"properties", "anyOf", "allOf", "if", "$ref"})
      if (node.contains(below)) return;
    keys.insert(path);
    for (const Json& word : node.value("enum", Json::array())) add(path, word.get<std::string>());
    if (node.contains("const")) add(path, node["const"].get<std::string>());
    if (node.value("type", "") == "boolean")
      for (const char* word : {"true", "false"}) add(path, word);
  }

  std::set<std::string> keys;
  std::map<std::string, std::vector<std::string>> values;

 private:
  void add(const std::string& path, const std::string& word) {
    auto& words = values[path];
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }

  void enter(const std::string& address, const std::string& path) {
    const auto name = address.substr(address.rfind('/') + 1);
    const Json& entered = definitions_.at(name);
    const bool kind = entered.at("properties").at("kind").contains("const");  // else: any of some
    if (kind && !inside_.insert(name).second) return;
    walk(entered, path);
    if (kind) inside_.erase(name);
  }

  const Json definitions_;
  std::set<std::string> inside_;
};

}  // namespace

ConfigWords config_words() {
  Experiment experiment;
  Json schema = Json::parse(schema_of(experiment));
  schema["properties"].erase("extends");  // of a file, not of an override
  schema.erase("then");                   // of files that extend others
  SchemaWords words(schema);
  words.walk(schema, "");
  return {{words.keys.begin(), words.keys.end()}, words.values};
}

}  // namespace headlab
