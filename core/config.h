// Configuration with places: YAML -> ConfigNode -> typed fields, and back.
//
// A block of settings is a struct with one `visit` that names every field once. Reading, writing,
// describing and the JSON schema are visitors of it (Fields). Defaults live in the member
// initialisers and nowhere else. No torch in here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headlab {

// The user's configuration is wrong. what() holds one line a problem:
// `file:line:column: path.to.key: what is wrong; did you mean 'x'?`
class ConfigError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Where a value was written. `file` is the YAML file, or "override" for `a.b=c` on the command
// line.
struct Place {
  std::string file;
  int line = 0, column = 0;    // 1-based; 0: unknown
  std::filesystem::path base;  // relative paths written here start from this directory
};

// One YAML value.
struct ConfigNode {
  enum class Kind { kNull, kScalar, kSequence, kMapping };
  Kind kind = Kind::kMapping;
  std::string text;               // scalar: its text, unquoted
  bool quoted = false;            // scalar: written in quotes, so never a number or a bool
  std::vector<ConfigNode> items;  // sequence
  std::vector<std::pair<std::string, ConfigNode>> entries;  // mapping, in order of writing
  Place place;

  static ConfigNode scalar(std::string text, bool quoted = false);
  const ConfigNode* find(std::string_view key) const;  // null when absent or not a mapping
  void set(const std::string& key, ConfigNode value);  // replaces or appends
};

// Collects every problem of a file, so that the user sees all of them at once.
class Problems {
 public:
  void add(const Place& place, const std::string& path, const std::string& what);
  bool empty() const { return lines_.empty(); }
  void raise() const;  // throws ConfigError when there is any

 private:
  std::vector<std::string> lines_;
};

// What values a field accepts.
struct Limits {
  std::optional<double> min, max;
  bool above_min = false, below_max = false;  // the bound itself is excluded
  std::vector<std::string> one_of;
};
Limits at_least(double min);
Limits above(double min);
Limits between(double min, double max);     // both included
Limits from_below(double min, double max);  // min included, max excluded
Limits one_of(std::vector<std::string> words);

// A path, as written and made absolute (from the file's directory; for an override from the
// caller's).
struct FilePath {
  std::string written;
  std::filesystem::path resolved;
};

struct Block;
struct CustomField;

// A visitor of settings. The scalar overloads take a name, the member, one line of help, limits.
class Fields {
 public:
  virtual ~Fields() = default;
  virtual void operator()(const char* name, bool& value, const char* help) = 0;
  virtual void operator()(const char* name, int64_t& value, const char* help, Limits = {}) = 0;
  virtual void operator()(const char* name, double& value, const char* help, Limits = {}) = 0;
  virtual void operator()(const char* name, std::string& value, const char* help, Limits = {}) = 0;
  virtual void operator()(const char* name, FilePath& value, const char* help) = 0;
  // Absent means "derived from the rest"; the help says how.
  virtual void operator()(const char* name, std::optional<bool>& value, const char* help) = 0;
  virtual void operator()(const char* name, std::optional<int64_t>& value, const char* help,
                          Limits = {}) = 0;
  virtual void operator()(const char* name, std::optional<double>& value, const char* help,
                          Limits = {}) = 0;
  // Lists accept a single value as a list of one. Limits hold for each item.
  virtual void operator()(const char* name, std::vector<int64_t>& value, const char* help,
                          Limits = {}) = 0;
  virtual void operator()(const char* name, std::vector<double>& value, const char* help,
                          Limits = {}) = 0;
  virtual void operator()(const char* name, std::vector<std::string>& value, const char* help,
                          Limits = {}) = 0;
  virtual void operator()(const char* name, Block& value, const char* help) = 0;
  virtual void operator()(const char* name, CustomField& value, const char* help) = 0;
};

// Says what is wrong with one field of the block being checked ("" = the block itself).
using Complain = std::function<void(const std::string& field, const std::string& what)>;

// A mapping of settings.
struct Block {
  virtual ~Block() = default;
  virtual void visit(Fields& f) = 0;
  virtual void check(const Complain&) const {}  // constraints between fields; after reading
};

// A value with a syntax of its own (a kind with its options, a word or a mapping, ...).
struct CustomField {
  virtual ~CustomField() = default;
  virtual void read(const ConfigNode& node, const std::string& path, Problems& problems) = 0;
  virtual ConfigNode write() const = 0;
  virtual ConfigNode write_minimal() const { return write(); }
  virtual std::string type() const = 0;    // for `describe`, e.g. "kind", "word or mapping"
  virtual std::string schema() const = 0;  // JSON schema of the value, as JSON text
};

// A family of named options: `kind: x` picks the block that reads the other keys of a mapping.
class KindRegistry {
 public:
  virtual ~KindRegistry() = default;
  virtual std::vector<std::string> names() const = 0;                         // sorted
  virtual std::shared_ptr<Block> options(const std::string& kind) const = 0;  // fresh, defaults
};

// `attention: {kind: mha, bias: true}`. Copies share the (immutable after reading) options.
class KindBlock : public CustomField {
 public:
  KindBlock(const KindRegistry& registry, std::string kind);
  const std::string& kind() const { return kind_; }
  const Block& options() const { return *options_; }
  template <class T>
  const T& as() const {
    return dynamic_cast<const T&>(*options_);
  }
  // Place and path of a field of this block, for checks that need to know more than the block does.
  Place place(const std::string& field = "") const;
  const std::string& path() const { return path_; }
  const ConfigNode& node() const { return node_; }  // what it was read from

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override;
  ConfigNode write() const override;
  ConfigNode write_minimal() const override;
  std::string type() const override { return "kind"; }
  std::string schema() const override;

 private:
  const KindRegistry* registry_;
  std::string kind_, path_;
  std::shared_ptr<Block> options_;
  ConfigNode node_;
};

// Text -> node. Rejects duplicate keys, anchors, aliases, merge keys, tags, several documents and
// nesting over 64, each with its place. `base` is where relative paths start. JSON is read as YAML.
ConfigNode parse_config(const std::string& text, const std::string& file,
                        const std::filesystem::path& base = {});

// Reads a file, its `extends: parent.yaml` (relative to it; cycles are an error), then the
// overrides `a.b.c=value` (value in YAML flow style). Mappings merge key by key, except that a
// mapping whose `kind` changes replaces the old one; everything else replaces.
ConfigNode load_config(const std::filesystem::path& file,
                       const std::vector<std::string>& overrides = {});
ConfigNode merge_config(const ConfigNode& base, const ConfigNode& over);

// Reads a mapping into a block: unknown keys, wrong types, limits and check() all go to `problems`.
void read_block(Block& block, const ConfigNode& node, const std::string& path, Problems& problems);
// The same, and throws ConfigError when there was any problem.
void read_config(Block& block, const ConfigNode& node);

enum class Paths { kAbsolute, kWritten };
ConfigNode write_block(Block& block, Paths paths = Paths::kAbsolute);
// What differs from `defaults`, a freshly made block of the same type.
ConfigNode write_minimal(Block& block, Block& defaults, Paths paths = Paths::kWritten);
std::string to_yaml(const ConfigNode& node);  // block style; short leaves in flow style

struct FieldInfo {
  std::string name, type, default_text, limits, help;
};
std::vector<FieldInfo> describe_block(Block& block);
std::string schema_of(Block& block);  // JSON schema (draft 2020-12) as JSON text

std::string shortest(double value);  // shortest text that reads back to the same value
// "; did you mean 'x'?" for the nearest of `names`, or "" when none is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& names);

}  // namespace headlab
