// Values as text: how scalars are written so that they read back the same, and nodes as YAML.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/config/characters.h"
#include "core/config/config.h"

namespace headlab {
namespace {

constexpr size_t kWidth = 90;  // a mapping of scalars that fits is written in flow style

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alnum(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// Does YAML take the code point for a line break, a byte order mark or a control? (The first are
// C1.)
bool is_invisible(utf8proc_int32_t code) {
  return (code >= 0x80 && code < 0xA0) || code == 0x2028 || code == 0x2029 || code == 0xFEFF ||
         code == 0xFFFE || code == 0xFFFF;
}

// May the text stand without quotes, in block and in flow style? Says yes to less than YAML does.
bool plain_safe(const std::string& text) {
  if (text.empty() || text.back() == ' ' || text.back() == ':') return false;
  const char first = text[0];
  const bool sign =
      (first == '-' || first == '+') && text.size() > 1 && (is_alnum(text[1]) || text[1] == '.');
  const bool starts = is_alnum(first) || first == '/' || first == '.' || sign ||
                      static_cast<unsigned char>(first) >= 0x80;
  if (!starts || text.starts_with("...")) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool inner = is_alnum(c) || static_cast<unsigned char>(c) >= 0x80 ||
                       std::string_view("/.+-=() ").find(c) != std::string_view::npos ||
                       (c == ':' && (is_alnum(text[i + 1]) || text[i + 1] == '/'));
    if (!inner || is_invisible(code_point(text, i).value)) return false;
  }
  return true;
}

// Would a YAML reader take the plain text for a number, a bool or null? Generous, so that others
// (YAML 1.1 knows `yes`, `0o17`, `1:30`, dates) read our files as we do. Only of plain_safe text,
// as the other is quoted anyway.
bool reads_as_other(const std::string& text) {
  const std::string lower = lowercase(text);
  for (const char* word : {"", "~", "null", "true", "false", "yes", "no", "on", "off", "y", "n",
                           ".inf", "-.inf", "+.inf", ".nan"}) {
    if (lower == word) return true;
  }
  const size_t start = text[0] == '-' || text[0] == '+' ? 1 : 0;
  const size_t digit = text[start] == '.' ? start + 1 : start;
  return digit < text.size() && is_digit(text[digit]) && plain_safe(text) &&
         text.find_first_of("/=() ") == std::string::npos;
}

std::string quote(const std::string& text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const CodePoint code = code_point(text, at);
    const std::string written = text.substr(at, std::max<size_t>(1, code.bytes));
    if (written == "\"" || written == "\\") {
      out += '\\' + written;
    } else if (written == "\n") {
      out += "\\n";
    } else if (written == "\t") {
      out += "\\t";
    } else if ((code.value >= 0 && code.value < 0x20) || code.value == 0x7f ||
               is_invisible(code.value)) {
      out += fmt::format("\\u{:04x}", code.value);
    } else {
      out += written;
    }
    at += written.size();
  }
  return out + '"';
}

std::string key_text(const std::string& key) {
  return plain_safe(key) && !reads_as_other(key) ? key : quote(key);
}

std::string scalar_text(const ConfigNode& node) {
  if (node.kind == ConfigNode::Kind::kNull) return "null";
  const bool plain = plain_safe(node.text) && !(node.quoted && reads_as_other(node.text));
  return plain ? node.text : quote(node.text);
}

bool is_leaf(const ConfigNode& node) {
  return node.kind == ConfigNode::Kind::kNull || node.kind == ConfigNode::Kind::kScalar ||
         (node.items.empty() && node.entries.empty());
}

bool fits_line(const ConfigNode& node, size_t used) {
  if (is_leaf(node)) return true;
  const auto& entries = node.entries;
  if (!std::all_of(node.items.begin(), node.items.end(), is_leaf)) return false;
  if (!std::all_of(entries.begin(), entries.end(), [](auto& e) { return is_leaf(e.second); })) {
    return false;
  }
  return entries.empty() || used + to_flow(node).size() <= kWidth;
}

void write_lines(const ConfigNode& node, size_t indent, std::string& out);

// What follows `key:` or `-`.
void write_after(const std::string& head, const ConfigNode& node, size_t indent, std::string& out) {
  out += std::string(indent, ' ') + head;
  if (fits_line(node, indent + head.size() + 1)) {
    out += ' ' + to_flow(node) + '\n';
  } else {
    out += '\n';
    write_lines(node, indent + 2, out);
  }
}

void write_lines(const ConfigNode& node, size_t indent, std::string& out) {
  for (const ConfigNode& item : node.items) write_after("-", item, indent, out);
  for (const auto& [key, value] : node.entries)
    write_after(key_text(key) + ':', value, indent, out);
}

}  // namespace

bool operator==(const ConfigNode& a, const ConfigNode& b) {
  return a.kind == b.kind && a.text == b.text &&
         (a.quoted == b.quoted || !reads_as_other(a.text)) && a.items == b.items &&
         a.entries == b.entries;
}

std::string shortest(double value) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, result.ptr};
}

std::string limits_text(const Limits& l) {
  if (!l.one_of.empty()) return fmt::format("{}", fmt::join(l.one_of, " | "));
  if (l.min && l.max) {
    return fmt::format("in {}{}, {}{}", l.above_min ? '(' : '[', shortest(*l.min), shortest(*l.max),
                       l.below_max ? ')' : ']');
  }
  if (l.min) return (l.above_min ? "> " : ">= ") + shortest(*l.min);
  if (l.max) return (l.below_max ? "< " : "<= ") + shortest(*l.max);
  return "";
}

ConfigNode write_bool(bool value) { return ConfigNode::scalar(value ? "true" : "false"); }

ConfigNode write_integer(int64_t value) { return ConfigNode::scalar(std::to_string(value)); }

// The point makes it a float for YAML 1.1 readers too, which take 1e-05 for a text.
ConfigNode write_number(double value) {
  if (std::isnan(value)) return ConfigNode::scalar(".nan");
  if (std::isinf(value)) return ConfigNode::scalar(value < 0 ? "-.inf" : ".inf");
  std::string text = shortest(value);
  if (text.find('.') == std::string::npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return ConfigNode::scalar(text);
}

ConfigNode write_text(const std::string& value) {
  return ConfigNode::scalar(value, reads_as_other(value));
}

ConfigNode write_path(const FilePath& value) {
  ConfigNode node = write_text(value.written);
  node.absolute = value.resolved.string();
  return node;
}

std::string to_flow(const ConfigNode& node) {
  std::string out;
  if (node.kind == ConfigNode::Kind::kSequence) {
    for (const ConfigNode& item : node.items) out += (out.empty() ? "" : ", ") + to_flow(item);
    return '[' + out + ']';
  }
  if (node.kind == ConfigNode::Kind::kMapping) {
    for (const auto& [key, value] : node.entries) {
      out += (out.empty() ? "" : ", ") + key_text(key) + ": " + to_flow(value);
    }
    return '{' + out + '}';
  }
  return scalar_text(node);
}

std::string to_yaml(const ConfigNode& node) {
  if (is_leaf(node)) return to_flow(node) + '\n';
  std::string out;
  write_lines(node, 0, out);
  return out;
}

}  // namespace headlab
