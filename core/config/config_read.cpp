// Nodes -> typed fields: strict values, limits, unknown keys, kinds.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "core/config/characters.h"
#include "core/config/config_fields.h"

namespace headlab {
namespace fs = std::filesystem;

namespace {

std::string join(const std::string& path, const std::string& key) {
  return path.empty() || key.empty() ? path + key : path + '.' + key;
}

// What stands there instead of the expected, e.g. "'yes'", "a list".
std::string shown(const ConfigNode& node) {
  switch (node.kind) {
    case ConfigNode::Kind::kNull:
      return "empty";
    case ConfigNode::Kind::kSequence:
      return "a list";
    case ConfigNode::Kind::kMapping:
      return "a mapping";
    default:
      break;
  }
  constexpr size_t kLongest = 60;
  size_t end = std::min(node.text.size(), kLongest);
  while (end < node.text.size() && (node.text[end] & 0xC0) == 0x80) --end;
  const std::string text = node.text.substr(0, end) + (end < node.text.size() ? "..." : "");
  return node.quoted ? "the text \"" + text + '"' : '\'' + text + '\'';
}

bool refuse(const ConfigNode& node, const std::string& path, Problems& problems,
            const std::string& due, const std::string& remedy = "") {
  problems.add(node.place, path, "must be " + due + ", is " + shown(node) + remedy);
  return false;
}

bool is_plain(const ConfigNode& node) {
  return node.kind == ConfigNode::Kind::kScalar && !node.quoted;
}

// 010 is 8 to some readers and 10 to others.
bool has_leading_zero(const std::string& text) {
  const size_t start = text.starts_with('-') ? 1 : 0;
  return text.size() > start + 1 && text[start] == '0' && text[start + 1] >= '0' &&
         text[start + 1] <= '9';
}

// Restricted Damerau-Levenshtein distance: insertions, deletions, replacements, swaps of
// neighbours.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> older, old(b.size() + 1), row(b.size() + 1);
  std::iota(old.begin(), old.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({old[j] + 1, row[j - 1] + 1, old[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], older[j - 2] + 1);
      }
    }
    older = std::move(old);
    old = row;
  }
  return old[b.size()];
}

template <class T>
bool within(const T& value, const ConfigNode& node, const std::string& path, Problems& problems,
            const Limits& limits) {
  const double v = static_cast<double>(value);
  const bool low = limits.min && (limits.above_min ? v <= *limits.min : v < *limits.min);
  const bool high = limits.max && (limits.below_max ? v >= *limits.max : v > *limits.max);
  if (!low && !high) return true;
  std::string due = limits_text(limits);  // of both bounds
  if (!limits.max) due = (limits.above_min ? "above " : "at least ") + shortest(*limits.min);
  if (!limits.min) due = (limits.below_max ? "below " : "at most ") + shortest(*limits.max);
  problems.add(node.place, path, "must be " + due + ", is " + node.text);
  return false;
}

const char* items_of(const std::vector<int64_t>&) { return "integers"; }
const char* items_of(const std::vector<double>&) { return "numbers"; }
const char* items_of(const std::vector<std::string>&) { return "texts"; }

// Follows `a.b` as far as it is written.
const ConfigNode* locate(const ConfigNode& node, const std::string& field) {
  const size_t dot = field.find('.');
  const ConfigNode* child = node.find(field.substr(0, dot));
  if (!child || dot == std::string::npos) return child;
  const ConfigNode* deeper = locate(*child, field.substr(dot + 1));
  return deeper ? deeper : child;
}

class Reader : public Fields {
 public:
  Reader(const ConfigNode& node, const std::string& path, Problems& problems)
      : node_(node), path_(path), problems_(problems) {}

  void know(const std::string& name) { known_.push_back(name); }

  void report_unknown() {
    for (const auto& [key, value] : node_.entries) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      const std::string meant =
          problems_.full() ? "" : meant_instead(key, path_, known_, problems_.root());
      problems_.add(value.key_place(), join(path_, key), "unknown key" + meant);
    }
  }

 private:
  void field(const char* name, FieldValue value, const char*, const Limits& limits) override {
    know(name);
    const std::string path = join(path_, name);
    if (const ConfigNode* written = node_.find(name)) {
      std::visit([&](auto* member) { read(*member, *written, path, limits); }, value);
    } else if (CustomField** custom = std::get_if<CustomField*>(&value)) {
      (*custom)->absent(path, node_.place);
    }
  }
  void read(bool& v, const ConfigNode& n, const std::string& path, const Limits&) {
    read_value(v, n, path, problems_);
  }
  void read(FilePath& v, const ConfigNode& n, const std::string& path, const Limits&) {
    read_value(v, n, path, problems_);
  }
  void read(Block& v, const ConfigNode& n, const std::string& path, const Limits&) {
    read_block(v, n, path, problems_);
  }
  void read(CustomField& v, const ConfigNode& n, const std::string& path, const Limits&) {
    v.read(n, path, problems_);
  }
  template <class T>
  void read(T& v, const ConfigNode& n, const std::string& path, const Limits& limits) {
    read_value(v, n, path, problems_, limits);
  }
  template <class T>
  void read(std::optional<T>& v, const ConfigNode& n, const std::string& path, const Limits& l) {
    const size_t before = problems_.size();
    T value{};
    read(value, n, path, l);
    if (problems_.size() == before) v = value;
  }
  template <class T>
  void read(std::vector<T>& v, const ConfigNode& n, const std::string& path, const Limits& l) {
    const bool list = n.kind == ConfigNode::Kind::kSequence;
    if (!list && n.kind != ConfigNode::Kind::kScalar) {
      refuse(n, path, problems_, fmt::format("a list of {}", items_of(v)));
      return;
    }
    const size_t before = problems_.size();
    std::vector<T> values(list ? n.items.size() : 1);
    for (size_t i = 0; i < values.size(); ++i) {
      read(values[i], list ? n.items[i] : n, list ? fmt::format("{}[{}]", path, i) : path, l);
    }
    if (problems_.size() == before) v = std::move(values);
  }

  const ConfigNode& node_;
  const std::string& path_;
  Problems& problems_;
  std::vector<std::string> known_;
};

// `known` are keys that the block does not name and somebody else reads.
void read_fields(Block& block, const ConfigNode& node, const std::string& path, Problems& problems,
                 const std::vector<std::string>& known = {}) {
  const size_t before = problems.size();
  Reader reader(node, path, problems);
  for (const std::string& name : known) reader.know(name);
  block.visit_all(reader);
  reader.report_unknown();
  if (problems.size() != before) return;
  block.check([&](const std::string& field, const std::string& what) {
    const ConfigNode* written = locate(node, field);
    problems.add((written ? *written : node).place, join(path, field), what);
  });
}

}  // namespace

Limits at_least(double min) { return {min, {}, false, false, {}}; }
Limits above(double min) { return {min, {}, true, false, {}}; }
Limits between(double min, double max) { return {min, max, false, false, {}}; }
Limits from_below(double min, double max) { return {min, max, false, true, {}}; }
Limits integer_limits(Limits limits) {
  if (!limits.min) limits.min = -kLargestInteger;
  if (!limits.max) limits.max = kLargestInteger;
  return limits;
}
Limits one_of(std::vector<std::string> words) { return {{}, {}, false, false, std::move(words)}; }

std::optional<std::string> nearest_name(const std::string& word,
                                        const std::vector<std::string>& names) {
  const std::string* nearest = nullptr;
  size_t least = 0;
  for (const std::string& name : names) {
    // A third of the letters may be wrong, one always, but never all.
    const auto [shorter, longer] = std::minmax({word.size(), name.size()});
    const size_t most = std::max<size_t>(1, longer / 3);
    if (longer - shorter > most) continue;
    const size_t wrong = distance(lowercase(word), lowercase(name));
    if (wrong <= most && wrong < longer && (!nearest || wrong < least)) {
      nearest = &name;
      least = wrong;
    }
  }
  return nearest ? std::optional(*nearest) : std::nullopt;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names) {
  const auto nearest = nearest_name(word, names);
  return nearest ? "; did you mean '" + *nearest + "'?" : "";
}

bool read_value(bool& value, const ConfigNode& node, const std::string& path, Problems& problems) {
  if (is_plain(node) && (node.text == "true" || node.text == "false")) {
    value = node.text == "true";
    return true;
  }
  std::string remedy;
  if (node.kind == ConfigNode::Kind::kScalar) {
    const std::string word = lowercase(node.text);
    for (const char* yes : {"true", "yes", "on", "y", "1"}) {
      if (word == yes) remedy = "; did you mean 'true'?";
    }
    for (const char* no : {"false", "no", "off", "n", "0"}) {
      if (word == no) remedy = "; did you mean 'false'?";
    }
  }
  return refuse(node, path, problems, "true or false", remedy);
}

bool read_value(int64_t& value, const ConfigNode& node, const std::string& path, Problems& problems,
                const Limits& limits) {
  const char *begin = node.text.data(), *end = begin + node.text.size();
  int64_t read = 0;
  const auto [stop, error] = std::from_chars(begin, end, read);
  if (!is_plain(node) || stop != end || error == std::errc::invalid_argument) {
    return refuse(node, path, problems, "an integer");
  }
  if (has_leading_zero(node.text)) {
    return refuse(node, path, problems, "an integer without leading zeros");
  }
  if (error != std::errc{}) return refuse(node, path, problems, "an integer of 64 bits");
  if (!within(read, node, path, problems, limits) ||
      !within(read, node, path, problems, integer_limits(limits)))
    return false;
  value = read;
  return true;
}

bool read_value(double& value, const ConfigNode& node, const std::string& path, Problems& problems,
                const Limits& limits) {
  const char *begin = node.text.data(), *end = begin + node.text.size();
  double read = 0;
  const auto [stop, error] = std::from_chars(begin, end, read);
  const std::string word = lowercase(node.text);
  const bool dotted = word == ".inf" || word == "-.inf" || word == "+.inf" || word == ".nan";
  if (!is_plain(node) || ((stop != end || error == std::errc::invalid_argument) && !dotted)) {
    return refuse(node, path, problems, "a number");
  }
  if (dotted || !std::isfinite(read)) return refuse(node, path, problems, "a finite number");
  if (has_leading_zero(node.text)) {
    return refuse(node, path, problems, "a number without leading zeros");
  }
  if (error != std::errc{})
    return refuse(node, path, problems, "a number in the range of a double");
  if (!within(read, node, path, problems, limits)) return false;
  value = read;
  return true;
}

bool read_value(std::string& value, const ConfigNode& node, const std::string& path,
                Problems& problems, const Limits& limits) {
  if (node.kind != ConfigNode::Kind::kScalar) return refuse(node, path, problems, "a text");
  const auto& words = limits.one_of;
  if (!words.empty() && std::find(words.begin(), words.end(), node.text) == words.end()) {
    problems.add(
        node.place, path,
        fmt::format("must be one of {}{}", fmt::join(words, ", "), did_you_mean(node.text, words)));
    return false;
  }
  value = node.text;
  return true;
}

bool read_value(FilePath& value, const ConfigNode& node, const std::string& path,
                Problems& problems) {
  if (node.kind != ConfigNode::Kind::kScalar || node.text.empty()) {
    return refuse(node, path, problems, "a path");
  }
  const auto resolved = fs::absolute(node.place.base / node.text).lexically_normal();
  if (!is_utf8(resolved.string())) {  // of the folder that a relative one starts from, too
    problems.add(node.place, path,
                 "leads to a folder or file whose name is not UTF-8, which a run could not write "
                 "down; rename it");
    return false;
  }
  value.written = node.text;
  value.resolved = resolved;
  return true;
}

void read_block(Block& block, const ConfigNode& node, const std::string& path, Problems& problems) {
  if (node.kind == ConfigNode::Kind::kMapping) {
    read_fields(block, node, path, problems);
  } else {
    refuse(node, path, problems, "a mapping");
  }
}

void read_config(Block& block, const ConfigNode& node) {
  Problems problems(block);
  read_block(block, node, "", problems);
  problems.raise();
}

KindBlock::KindBlock(const KindRegistry& registry, std::string kind)
    : registry_(&registry), kind_(std::move(kind)), options_(registry.options(kind_)) {
  if (!options_) throw std::invalid_argument("no kind '" + kind_ + "' is registered");
}

Place KindBlock::place(const std::string& field) const {
  const ConfigNode* written = locate(node_, field);
  return (written ? *written : node_).place;
}

void KindBlock::absent(const std::string& path, const Place& mapping) {
  path_ = path;
  node_.place = mapping;
}

void KindBlock::read(const ConfigNode& node, const std::string& path, Problems& problems) {
  const bool mapping = node.kind == ConfigNode::Kind::kMapping;
  if (!mapping && node.kind != ConfigNode::Kind::kScalar) {
    refuse(node, path, problems, "a kind, or a mapping with 'kind'");
    return;
  }
  node_ = node;
  path_ = path;
  std::string kind = kind_;
  if (const ConfigNode* written = mapping ? node.find("kind") : &node) {
    const std::string where = mapping ? join(path, "kind") : path;
    if (!read_value(kind, *written, where, problems, one_of(registry_->names()))) return;
  }
  kind_ = kind;
  options_ = registry_->options(kind);
  const ConfigNode alone(ConfigNode::Kind::kMapping, node.place);
  read_fields(*options_, mapping ? node : alone, path, problems, {"kind"});
}

}  // namespace headlab
