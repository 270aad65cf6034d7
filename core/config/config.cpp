// Configuration nodes and problems.
#include "core/config/config.h"

#include <fmt/format.h>

namespace headlab {
namespace {

constexpr size_t kMaxProblems = 100;

// A problem is one line: no line breaks and no terminal controls from the user's text.
std::string printable(const std::string& text) {
  std::string out;
  for (unsigned char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out;
}

}  // namespace

ConfigNode::ConfigNode() = default;
ConfigNode::ConfigNode(Kind kind, Place place) : kind(kind), place(std::move(place)) {}

ConfigNode ConfigNode::scalar(std::string text, bool quoted, Place place) {
  ConfigNode node(Kind::kScalar, std::move(place));
  node.text = std::move(text);
  node.quoted = quoted;
  return node;
}

const ConfigNode* ConfigNode::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name == key) return &value;
  }
  return nullptr;
}

ConfigNode* ConfigNode::find(std::string_view key) {
  return const_cast<ConfigNode*>(std::as_const(*this).find(key));
}

void ConfigNode::set(const std::string& key, ConfigNode value) {
  if (ConfigNode* old = find(key)) {
    *old = std::move(value);
  } else {
    entries.emplace_back(key, std::move(value));
  }
}

Place ConfigNode::key_place() const {
  Place result = place;
  if (key_line > 0) result.line = key_line, result.column = key_column;
  return result;
}

void Problems::add(const Place& place, const std::string& path, const std::string& what) {
  const bool counted_only = full();
  ++count_;
  if (counted_only) return;
  std::string line = place.file;
  if (place.line > 0) line += fmt::format(":{}:{}", place.line, place.column);
  for (const std::string& part : {path, what}) {
    if (!part.empty()) line += (line.empty() ? "" : ": ") + part;
  }
  lines_.push_back(printable(line));
}

bool Problems::full() const { return count_ >= kMaxProblems; }

void Problems::raise() const {
  if (empty()) return;
  std::string all;
  for (const std::string& line : lines_) all += (all.empty() ? "" : "\n") + line;
  if (count_ > lines_.size()) all += fmt::format("\nand {} more", count_ - lines_.size());
  throw ConfigError(all);
}

void raise_problem(const Place& place, const std::string& path, const std::string& what) {
  Problems problems;
  problems.add(place, path, what);
  problems.raise();
  throw std::logic_error("unreachable");
}

ConfigNode parse_config(const std::string& text, const std::string& file,
                        const std::filesystem::path& base) {
  ConfigNode node = parse_value(text, {file, 1, 1, base}, "");
  if (node.kind == ConfigNode::Kind::kNull) node.kind = ConfigNode::Kind::kMapping;
  if (node.kind != ConfigNode::Kind::kMapping) {
    const bool list = node.kind == ConfigNode::Kind::kSequence;
    raise_problem(node.place, "",
                  fmt::format("must be a mapping of keys to values, is {}",
                              list ? "a list" : "a plain value"));
  }
  return node;
}

}  // namespace headlab
