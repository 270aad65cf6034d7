// YAML text -> ConfigNode: yaml-cpp's events, held to stricter rules.
#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>

#include "core/config/characters.h"
#include "core/config/config.h"

namespace headlab {
namespace {

// A node costs some hundred bytes and a value in the file as little as two.
constexpr size_t kMaxValues = 100'000;
constexpr size_t kMaxDepth = 64;  // mappings and lists within each other
constexpr size_t kMaxKey = 128;   // yaml-cpp looks 1024 bytes ahead for a key's colon

// Builds nodes from yaml-cpp's events. Goes on after a problem where the structure is still clear.
class NodeBuilder : public YAML::EventHandler {
 public:
  // `origin` has the file and base of all places; with its line 0 none has a line.
  NodeBuilder(std::string text, Place origin, std::string path)
      : text_(std::move(text)),
        origin_(std::move(origin)),
        root_path_(std::move(path)),
        root_(ConfigNode::Kind::kNull, origin_) {}

  ConfigNode build() {
    if (text_.size() > kMaxConfigBytes) {
      fail({origin_.file, 0, 0, {}}, "is larger than 1 MiB, so not a configuration");
    }
    check_characters();
    std::istringstream in(text_);
    try {
      YAML::Parser parser(in);
      while (parser.HandleNextDocument(*this)) {
      }
    } catch (const YAML::Exception& error) {
      take_syntax_error(error);
    }
    problems_.raise();
    return std::move(root_);
  }

 private:
  struct Frame {
    ConfigNode node;
    std::unordered_map<std::string, int> keys = {};  // with the line of each
    bool has_key = false, key_valid = false;
    std::string key = "";
    int key_line = 0, key_column = 0;
  };

  void fail(const Place& where, const std::string& what) {
    problems_.add(where, path(), what);
    problems_.raise();
  }

  // yaml-cpp takes byte 4 for the end of the file, decodes UTF-16 and lets broken UTF-8 through.
  void check_characters() {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.erase(0, 3);
    continuations_.assign(text_.size() + 1, 0);
    for (size_t i = 0; i < text_.size(); ++i)
      continuations_[i + 1] = continuations_[i] + ((text_[i] & 0xC0) == 0x80 ? 1 : 0);
    for (size_t i = 0; i < text_.size();) {
      const auto c = static_cast<unsigned char>(text_[i]);
      const bool control = (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f;
      const size_t length = code_point(text_, i).bytes;
      if (length == 0 || control) {
        fail(place(mark_of(i)), control
                                    ? fmt::format("control character 0x{:02x} is not allowed", c)
                                    : "is not UTF-8 text");
      }
      i += length;
    }
  }

  YAML::Mark mark_of(size_t at) const {
    const size_t line_start = at == 0 ? 0 : text_.rfind('\n', at - 1) + 1;
    YAML::Mark mark;
    mark.pos = static_cast<int>(at), mark.column = static_cast<int>(at - line_start);
    mark.line = static_cast<int>(std::count(text_.begin(), text_.begin() + mark.pos, '\n'));
    return mark;
  }

  // yaml-cpp counts columns in bytes; editors count characters.
  Place place(const YAML::Mark& mark) const {
    Place result{origin_.file, 0, 0, origin_.base};
    if (origin_.line == 0 || mark.is_null()) return result;
    result.line = mark.line + 1;
    result.column = mark.column + 1;
    const auto end = static_cast<size_t>(mark.pos);
    if (mark.pos >= mark.column && end < continuations_.size()) {
      result.column -= continuations_[end] - continuations_[end - mark.column];
    }
    return result;
  }

  void take_syntax_error(const YAML::Exception& error) {
    // yaml-cpp misses a closing bracket at the end of the text; the user looks where it opens.
    if (!stack_.empty() && (error.msg == YAML::ErrorMsg::END_OF_SEQ_FLOW ||
                            error.msg == YAML::ErrorMsg::END_OF_MAP_FLOW)) {
      const Place opened = stack_.back().node.place;
      stack_.pop_back();
      return complain(opened, "the bracket is not closed");
    }
    const std::string indent = error.mark.is_null() ? "" : indentation(error.mark);
    const bool tab = indent.find('\t') != std::string::npos;
    complain(place(error.mark), error.msg + (tab ? "; indent with spaces, not with tabs" : ""));
  }

  std::string indentation(const YAML::Mark& mark) const {
    const size_t at = std::min(static_cast<size_t>(mark.pos), text_.size());
    const size_t start = at - std::min<size_t>(at, mark.column);
    return text_.substr(start,
                        std::min(text_.find_first_not_of(" \t", start), text_.size()) - start);
  }

  std::string path() const {
    std::string result = root_path_;
    for (const Frame& frame : stack_) {
      if (frame.node.kind == ConfigNode::Kind::kSequence) {
        result += fmt::format("[{}]", frame.node.items.size());
      } else if (frame.has_key) {
        if (!result.empty()) result += '.';
        result += frame.key;
      }
    }
    return result;
  }

  bool expects_key() const {
    return !stack_.empty() && stack_.back().node.kind == ConfigNode::Kind::kMapping &&
           !stack_.back().has_key;
  }

  void complain(const Place& where, const std::string& what) { problems_.add(where, path(), what); }

  void reject_extras(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) complain(place(mark), "anchors (&) are not supported; write the value out");
    if (tag != "?" && tag != "!" && !tag.empty()) {
      complain(place(mark), "tags (!) are not supported; write the plain value");
    }
  }

  void take_key(const ConfigNode& node, bool plain) {
    Frame& frame = stack_.back();
    frame.has_key = true;
    const bool word = node.kind == ConfigNode::Kind::kScalar;
    frame.key = word && node.text.size() <= kMaxKey ? node.text : std::string(1, '?');
    frame.key_line = node.place.line, frame.key_column = node.place.column;
    frame.key_valid = false;
    if (!word) {
      complain(node.place, "a key must be a word");
    } else if (node.text.size() > kMaxKey) {
      complain(node.place, fmt::format("a key may have at most {} bytes", kMaxKey));
    } else if (plain && node.text == "<<") {
      complain(node.place, "merge keys (<<) are not supported; write the keys out");
    } else if (const auto [known, added] = frame.keys.emplace(frame.key, node.place.line); !added) {
      complain(node.place, known->second > 0
                               ? fmt::format("duplicate key, first on line {}", known->second)
                               : "duplicate key");
    } else {
      frame.key_valid = true;
    }
  }

  void take(ConfigNode node, bool plain = false) {
    if (++values_ > kMaxValues) {
      fail(node.place, fmt::format("holds more than {} values", kMaxValues));
    }
    if (expects_key()) return take_key(node, plain);
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.node.kind == ConfigNode::Kind::kSequence) {
      frame.node.items.push_back(std::move(node));
      return;
    }
    frame.has_key = false;
    if (!frame.key_valid) return;
    node.key_line = frame.key_line, node.key_column = frame.key_column;
    frame.node.entries.emplace_back(frame.key, std::move(node));
  }

  // yaml-cpp gives a value that is not written the place of whatever follows.
  Place null_place(const YAML::Mark& mark) const {
    Place result = place(mark);
    if (stack_.empty() || !stack_.back().has_key) return result;
    const Frame& frame = stack_.back();
    if (result.line != frame.key_line || result.column < frame.key_column) {
      result.line = frame.key_line, result.column = frame.key_column;
    }
    return result;
  }

  void open(ConfigNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    reject_extras(mark, tag, anchor);
    if (stack_.size() == kMaxDepth) {
      fail(place(mark), fmt::format("nested more than {} deep", kMaxDepth));
    }
    stack_.push_back({.node = {kind, place(mark)}});
  }

  void close() {
    ConfigNode node = std::move(stack_.back().node);
    stack_.pop_back();
    take(std::move(node));
  }

  // yaml-cpp lets the end of the file close a quote.
  void check_closed(const YAML::Mark& mark) {
    const auto start = static_cast<size_t>(mark.pos);
    if (start >= text_.size() || (text_[start] != '"' && text_[start] != '\'')) return;
    const char quote = text_[start];
    for (size_t i = start + 1; i < text_.size(); ++i) {
      if (quote == '"' && text_[i] == '\\') {
        ++i;
      } else if (quote == '\'' && text_.compare(i, 2, "''") == 0) {
        ++i;
      } else if (text_[i] == quote) {
        return;
      }
    }
    complain(place(mark), "the quote is not closed");
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ == 0) return;
    problems_.add(place(mark), root_path_,
                  "a second document or value begins; only one is allowed");
    problems_.raise();
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    reject_extras(mark, "", anchor);
    take({ConfigNode::Kind::kNull, null_place(mark)});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    complain(place(mark), "aliases (*) are not supported; write the value out");
    take(ConfigNode::scalar("*", false, place(mark)));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    reject_extras(mark, tag, anchor);
    const bool quoted = tag == "!";
    if (quoted) check_closed(mark);
    if (value.find('\0') != std::string::npos) complain(place(mark), "holds a NUL character");
    if (!is_utf8(value)) {  // of these yaml-cpp makes single bytes
      fail(place(mark),
           "holds an escape (\\N or \\_) that is not UTF-8 text; write \\u0085 or \\u00a0");
    }
    take(ConfigNode::scalar(value, quoted, place(mark)), !quoted);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(ConfigNode::Kind::kSequence, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(ConfigNode::Kind::kMapping, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

  std::string text_;
  Place origin_;
  std::string root_path_;
  std::vector<int> continuations_;  // UTF-8 continuation bytes before each byte
  std::vector<Frame> stack_;
  ConfigNode root_;
  size_t values_ = 0;
  int documents_ = 0;
  Problems problems_;
};

}  // namespace

bool is_utf8(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = code_point(text, at).bytes;
    if (bytes == 0) return false;
    at += bytes;
  }
  return true;
}

ConfigNode parse_value(const std::string& text, const Place& origin, const std::string& path) {
  return NodeBuilder(text, origin, path).build();
}

}  // namespace headlab
