// `headlab completion SHELL`: a completion script, or the manual page, made from the registered
// commands and the schema of configs.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "experiments/commands/command.h"
#include "experiments/commands/config_description.h"
#include "experiments/commands/reference_pages.h"
#include "experiments/commands/shell_functions.h"
#include "experiments/files/config_schema.h"
#include "experiments/runs/experiment.h"
#include "experiments/system/output.h"

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

// Of the keys that a config may have: `train.steps`; the options of all kinds side by side.
struct ConfigWords {
  std::vector<std::string> keys;                           // sorted
  std::map<std::string, std::vector<std::string>> values;  // of keys that take one of few words
};

ConfigWords config_words() {
  Experiment experiment;
  Json schema = Json::parse(schema_of(experiment));
  schema["properties"].erase("extends");  // of a file, not of an override
  schema.erase("then");                   // of files that extend others
  SchemaWords words(schema);
  words.walk(schema, "");
  return {{words.keys.begin(), words.keys.end()}, words.values};
}

// What is one of few words, by what stands before it: an option or a name of a positional with its
// command ("convert --to"), or a key of a config.
std::map<std::string, std::vector<std::string>> choices(const ConfigWords& config) {
  auto words = config.values;
  for (const auto& c : commands())
    for (const auto& word : words_of(c))
      if (!word.choices.empty()) words[c.name + " " + word.name] = word.choices;
  words["describe word"] = headlab::words();
  return words;
}

std::string names_of(const Command& command, bool options) {
  std::string names;
  for (const auto& word : words_of(command))
    if (word.name.starts_with("--") == options) names += (names.empty() ? "" : " ") + word.name;
  return names;
}

std::string bash() {
  const auto config = config_words();
  std::string names, cases, chosen;
  for (const auto& c : commands()) {
    names += (names.empty() ? "" : " ") + c.name;
    cases += fmt::format("    {}) options='{}' positionals='{}' ;;\n", c.name, names_of(c, true),
                         names_of(c, false));
  }
  for (const auto& [before, words] : choices(config))
    chosen += fmt::format("    '{}') echo '{}' ;;\n", before, fmt::join(words, " "));
  return fmt::format(
      "_headlab_commands='{}'\n"
      "_headlab_keys='{}'\n"
      "_headlab_takes() {{\n  case $1 in\n{}  esac\n}}\n"
      "_headlab_choices() {{\n  case $1 in\n{}  esac\n}}\n{}",
      names, fmt::join(config.keys, " "), cases, chosen, kBashFunctions);
}

// Also as a file on fpath, which zsh reads when it first completes: then it is to answer at once.
std::string zsh() {
  return "#compdef headlab\nautoload -U +X bashcompinit && bashcompinit\n" + bash() +
         "if [[ ${funcstack[1]-} == _headlab ]]; then\n"
         "  _bash_complete -o default -o nospace -F _headlab\nfi\n";
}

// Of a text between single quotes.
std::string quotable(const std::string& text) {
  std::string quoted;
  for (const char c : text) quoted += c == '\'' ? std::string("\\'") : std::string(1, c);
  return quoted;
}

// How fish completes one word of a command. `of`: the start of such a line; `few`: the words that
// may stand there, where these are few, else null.
std::string fish_line(const std::string& of, const CommandWord& word,
                      const std::vector<std::string>* few) {
  const auto list = few ? fmt::format(" '{}'", fmt::join(*few, " ")) : "";
  if (word.name.starts_with("--")) {
    const auto option = fmt::format("{} -l {}", of, word.name.substr(2));
    if (word.value.empty()) return option + list + "\n";  // a flag
    return option + (few ? " -x -a" + list : " -r") + "\n";
  }
  if (few) return of + " -f -a" + list + "\n";
  if (word.name == "overrides") return of + " -a '(__headlab_keys)'\n";
  if (word.name == "run" || word.name == "source" || word.name == "FILE")
    return of + " -a '(__headlab_runs)'\n";
  return "";
}

// fish completes words behind `=` by itself where the whole words are known.
std::string fish() {
  const auto config = config_words();
  const auto chosen = choices(config);
  std::string script =
      fmt::format("function __headlab_keys\n    printf '%s=\\n' {}\n", fmt::join(config.keys, " "));
  for (const auto& [key, words] : config.values)
    script += fmt::format("    printf '{}=%s\\n' {}\n", key, fmt::join(words, " "));
  script += fmt::format("end\n{}complete -c headlab -n __fish_use_subcommand -f\n", kFishFunctions);
  for (const auto& c : commands()) {
    script += fmt::format("complete -c headlab -n __fish_use_subcommand -a {} -d '{}'\n", c.name,
                          quotable(c.summary));
    const auto of = fmt::format("complete -c headlab -n '__fish_seen_subcommand_from {}'", c.name);
    for (const auto& word : words_of(c)) {
      const auto few = chosen.find(c.name + " " + word.name);
      script += fish_line(of, word, few == chosen.end() ? nullptr : &few->second);
    }
  }
  return script;
}

struct CompletionOptions {
  std::string shell;

  void visit(Arguments& a) {
    a.choice("shell", shell, "bash, zsh or fish; man: the manual page",
             {"bash", "zsh", "fish", "man"}, Arguments::kRequired);
  }
};

std::string script_for(const std::string& shell) {
  if (shell == "bash") return bash();
  if (shell == "zsh") return zsh();
  if (shell == "fish") return fish();
  return manual();
}

int run_completion(const CompletionOptions& o) {
  print_data(script_for(o.shell));
  return kDone;
}

const RegisterCommand completion_command({.name = "completion",
                                          .summary = "print a completion script for a shell",
                                          .example = "source <(headlab completion bash)",
                                          .group = Group::kExtend},
                                         run_completion);

}  // namespace

}  // namespace headlab
