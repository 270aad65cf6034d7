#include "experiments/data/tokenizers/char_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"

namespace headlab {
namespace {

// 'e' (U+0065); controls by number alone.
std::string named(char32_t c) {
  const std::string number = fmt::format("U+{:04X}", static_cast<uint32_t>(c));
  const bool control = c < 0x20 || (c >= 0x7F && c < 0xA0);
  return control ? number : fmt::format("'{}' ({})", encode_utf8(c), number);
}

class CharTokenizer : public Tokenizer {
 public:
  explicit CharTokenizer(std::u32string characters) : characters_(std::move(characters)) {
    const auto not_before = [](char32_t a, char32_t b) { return a >= b; };
    const auto wrong = std::adjacent_find(characters_.begin(), characters_.end(), not_before);
    if (characters_.empty() || wrong != characters_.end())
      throw DataError("a vocabulary of characters must have some, in ascending order");
  }

  int64_t vocabulary() const override { return std::ssize(characters_); }

  Encoding encode(std::string_view text, const std::string& name) const override {
    Encoding encoding;
    std::vector<bool> spaces;
    size_t at = 0;
    int64_t line = 1;
    for (char32_t c : decode_utf8(text, name)) {
      encoding.ids.push_back(id_of(c, name, line));
      const size_t end = at + utf8_length(text, at);
      encoding.ranges.push_back({at, end});
      spaces.push_back(is_white_space(c));
      if (c == '\n') ++line;
      at = end;
    }
    encoding.words = words_between(spaces);
    return encoding;
  }

  // Before every byte that is not inside a character.
  size_t next_cut(std::string_view text, size_t from) const override {
    return first_place(text, from, [&](size_t at) { return (text[at] & 0xC0) != 0x80; });
  }

  std::string bytes(int64_t id, std::optional<int64_t>) const override {
    return encode_utf8(characters_[checked_id(id)]);
  }

  std::vector<std::string> token_texts() const override {
    std::vector<std::string> texts;
    for (char32_t c : characters_) texts.push_back(encode_utf8(c));
    return texts;
  }

  nlohmann::ordered_json json() const override {
    std::string characters;
    for (char32_t c : characters_) characters += encode_utf8(c);
    return {{"kind", "char"}, {"characters", characters}};
  }

 private:
  int64_t id_of(char32_t c, const std::string& name, int64_t line) const {
    const auto found = std::lower_bound(characters_.begin(), characters_.end(), c);
    if (found == characters_.end() || *found != c)
      throw LineError(
          name, line,
          fmt::format("{} is none of the {} characters of the vocabulary; leave it out, or train "
                      "on a text that has it",
                      named(c), characters_.size()));
    return found - characters_.begin();
  }

  std::u32string characters_;
};

const RegisterTokenizer char_reader("char", [](const nlohmann::ordered_json& json) {
  const auto characters = json.at("characters").get<std::string>();
  return char_tokenizer(decode_utf8(characters, "characters"));
});

}  // namespace

std::shared_ptr<const Tokenizer> char_tokenizer(std::u32string characters) {
  return std::make_shared<CharTokenizer>(std::move(characters));
}

}  // namespace headlab
