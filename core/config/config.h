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
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
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
  std::string absolute;  // scalar written from a FilePath: its absolute form (see Paths)
  Place place;
  int key_line = 0, key_column = 0;  // where its key stands, in a mapping

  // An empty mapping. Not inline: clang needs std::pair complete first.
  ConfigNode();
  ConfigNode(Kind kind, Place place);
  static ConfigNode scalar(std::string text, bool quoted = false, Place place = {});
  const ConfigNode* find(std::string_view key) const;  // null when absent or not a mapping
  ConfigNode* find(std::string_view key);
  void set(const std::string& key, ConfigNode value);  // replaces or appends
  Place key_place() const;
};
// The same values in the same order. Places do not count, and quotes only where they change the
// meaning ("1" is not 1, "a" is a).
bool operator==(const ConfigNode& a, const ConfigNode& b);

struct Block;

// Collects every problem of a file, so that the user sees all of them at once (the first 100).
class Problems {
 public:
  Problems() = default;
  // Unknown keys are looked for in all of `root`, which is being read.
  explicit Problems(Block& root) : root_(&root) {}
  Block* root() const { return root_; }

  void add(const Place& place, const std::string& path, const std::string& what);
  bool empty() const { return count_ == 0; }
  bool full() const;  // more are only counted
  size_t size() const { return count_; }
  void raise() const;  // throws ConfigError when there is any

 private:
  std::vector<std::string> lines_;
  size_t count_ = 0;
  Block* root_ = nullptr;
};
// Throws ConfigError with this one problem.
[[noreturn]] void raise_problem(const Place& place, const std::string& path,
                                const std::string& what);

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
std::string limits_text(const Limits& limits);  // ">= 1", "in [0, 1)", "a | b | c", or ""

// A path, as written and made absolute (from the file's directory; for an override from the
// caller's).
struct FilePath {
  std::string written;
  std::filesystem::path resolved;
};

struct CustomField;

// The member that holds a setting.
using FieldValue =
    std::variant<bool*, int64_t*, double*, std::string*, FilePath*,
                 // Absent means "derived from the rest"; the help says how.
                 std::optional<bool>*, std::optional<int64_t>*, std::optional<double>*,
                 // Lists accept a single value as a list of one. Limits hold for each item.
                 std::vector<int64_t>*, std::vector<double>*, std::vector<std::string>*,  //
                 Block*, CustomField*>;

// A visitor of settings.
class Fields {
 public:
  virtual ~Fields() = default;
  // `help` is one line. Only numbers and texts, and optional ones or lists of them, have limits.
  template <class T>
  void operator()(const char* name, T& value, const char* help, const Limits& limits = {}) {
    field(name, &value, help, limits);
  }

 private:
  virtual void field(const char* name, FieldValue value, const char* help,
                     const Limits& limits) = 0;
};

// Says what is wrong with one field of the block being checked ("" = the block itself, "a.b" =
// field b of its block a).
using Complain = std::function<void(const std::string& field, const std::string& what)>;

// Words of other tools, and the paths, "a.b.c", of the settings that they name here.
using OtherWords = std::span<const std::pair<std::string_view, std::string_view>>;

// A mapping of settings.
struct Block {
  virtual ~Block() = default;
  virtual void visit(Fields& f) = 0;
  // What readers and writers ask: those of visit(), and fields that all blocks of a family have.
  virtual void visit_all(Fields& f) { visit(f); }
  virtual void check(const Complain&) const {}  // constraints between fields; after reading
  virtual OtherWords other_words() const { return {}; }  // of the block that a file is read to
};

class KindRegistry;

// A visitor of the forms in which a value with a syntax of its own may be written. It passes over
// those that it does not override.
class Forms {
 public:
  virtual ~Forms() = default;
  virtual void integer(const Limits&) {}
  virtual void number(const Limits&) {}
  virtual void word(const std::vector<std::string>&) {}
  virtual void mapping(Block&) {}
  // A mapping with `kind: <kind>` and that kind's options. `usual`: it is meant where none is
  // named.
  virtual void kind(const std::string& /*kind*/, Block& /*options*/, bool /*usual*/) {}
  // Any kind of a family: its word, or its mapping. usual "": without `kind` it may be any of them.
  virtual void kinds(const KindRegistry&, const std::string& /*usual*/) {}
  // A mapping of keys of one's own, all with values of the same forms.
  virtual void entries(const std::string& /*key_pattern*/,
                       const std::function<void(Forms&)>& /*value*/) {}
};

// A value with a syntax of its own (a kind with its options, a word or a mapping, ...).
struct CustomField {
  virtual ~CustomField() = default;
  virtual void read(const ConfigNode& node, const std::string& path, Problems& problems) = 0;
  // Called instead of read() when the key is not written: its path, and the place of its mapping.
  virtual void absent(const std::string& /*path*/, const Place& /*mapping*/) {}
  virtual ConfigNode write() const = 0;  // a null node: the key is not written
  virtual ConfigNode write_minimal() const { return write(); }
  virtual std::string type() const = 0;    // for `describe`, e.g. "kind", "word or mapping"
  virtual void forms(Forms& f) const = 0;  // those that read() takes
};

// A family of named options: `kind: x` picks the block that reads the other keys of a mapping.
class KindRegistry {
 public:
  virtual ~KindRegistry() = default;
  virtual std::vector<std::string> names() const = 0;                         // sorted
  virtual std::shared_ptr<Block> options(const std::string& kind) const = 0;  // fresh, defaults
};

// `attention: {kind: mha, bias: true}`, or `attention: mha` for a kind with its defaults. Without
// `kind` the options are those of the kind it was made with. Copies share the (immutable after
// reading) options.
class KindBlock : public CustomField {
 public:
  KindBlock(const KindRegistry& registry, std::string kind);  // the registry must know the kind
  const std::string& kind() const { return kind_; }
  const Block& options() const { return *options_; }
  template <class T>
  const T& as() const {
    return dynamic_cast<const T&>(*options_);
  }
  // Place and path of a field of this block, for checks that need to know more than the block does.
  // A field that was not written has the place of the block, or of the mapping around it.
  Place place(const std::string& field = "") const;
  const std::string& path() const { return path_; }
  const ConfigNode& node() const { return node_; }  // what it was read from

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override;
  void absent(const std::string& path, const Place& mapping) override;
  ConfigNode write() const override;
  ConfigNode write_minimal() const override;
  std::string type() const override { return "kind"; }
  void forms(Forms& f) const override { f.kinds(*registry_, kind_); }

 private:
  const KindRegistry* registry_;
  std::string kind_, path_;
  std::shared_ptr<Block> options_;
  ConfigNode node_;
};

inline constexpr size_t kMaxConfigBytes = 1 << 20;

// Text -> node. Rejects duplicate keys, anchors, aliases, merge keys, tags, several documents and
// nesting over 64, each with its place. `base` is where relative paths start. JSON is read as YAML
// (except that yaml-cpp refuses pairs of \u escapes beyond the basic plane).
// At most 1 MiB and 100,000 values; an empty text is an empty mapping, any other must be a mapping.
ConfigNode parse_config(const std::string& text, const std::string& file,
                        const std::filesystem::path& base = {});

// The same for one value of any kind (empty: null). `origin` gives file and base of all places, and
// with its line 0 none of them has a line; `path` stands before all paths.
ConfigNode parse_value(const std::string& text, const Place& origin, const std::string& path);

// One value, as the fields read it, for a CustomField's read(); false when it was a problem.
bool read_value(bool& value, const ConfigNode& node, const std::string& path, Problems& problems);
bool read_value(int64_t& value, const ConfigNode& node, const std::string& path, Problems& problems,
                const Limits& limits = {});
bool read_value(double& value, const ConfigNode& node, const std::string& path, Problems& problems,
                const Limits& limits = {});
bool read_value(std::string& value, const ConfigNode& node, const std::string& path,
                Problems& problems, const Limits& limits = {});
bool read_value(FilePath& value, const ConfigNode& node, const std::string& path,
                Problems& problems);

// Reads a mapping into a block: unknown keys, wrong types, limits and check() all go to `problems`.
void read_block(Block& block, const ConfigNode& node, const std::string& path, Problems& problems);
// The same, and throws ConfigError when there was any problem.
void read_config(Block& block, const ConfigNode& node);

// One value, as the fields write it, for a CustomField's write(). (Names, not overloads: a literal
// "x" would convert to bool.)
ConfigNode write_bool(bool value);
ConfigNode write_integer(int64_t value);
ConfigNode write_number(double value);            // visibly a float: 1.0, 0.001, 1.0e-05
ConfigNode write_text(const std::string& value);  // quoted where it would read as another type
ConfigNode write_path(const FilePath& value);     // write_block picks the form, however deep

enum class Paths { kAbsolute, kWritten };
ConfigNode write_block(Block& block, Paths paths = Paths::kAbsolute);
// What differs from `defaults`, a freshly made block of the same type.
ConfigNode write_minimal(Block& block, Block& defaults, Paths paths = Paths::kWritten);
std::string to_yaml(const ConfigNode& node);  // block style; short leaves in flow style
std::string to_flow(const ConfigNode& node);  // on one line

bool is_utf8(const std::string& text);
std::string shortest(double value);  // shortest text that reads back to the same value
// "; did you mean 'x'?" for the nearest of `names`, or "" when none is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& names);
std::optional<std::string> nearest_name(const std::string& word,
                                        const std::vector<std::string>& names);

// Options whose defaults follow from other options, or from what they are options of:
// derive() writes down what is left open, as it then is: an option that says what would follow
// anyway makes no other run.
template <class... From>
struct DerivedDefaults {
  virtual ~DerivedDefaults() = default;
  virtual void derive(const From&... from) = 0;
};

}  // namespace headlab
