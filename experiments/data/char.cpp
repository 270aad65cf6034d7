// Characters of a text file: a token is a code point, the vocabulary is what occurs in the text, in
// ascending order. Splits and ids are those of nanoGPT's data/shakespeare_char/prepare.py.
#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "core/files/mapped_file.h"
#include "experiments/data/text_stream.h"
#include "experiments/system/utf8.h"

namespace headlab {
namespace {

// 'e' (U+0065); controls by number alone.
std::string named(char32_t c) {
  const std::string number = fmt::format("U+{:04X}", static_cast<uint32_t>(c));
  const bool control = c < 0x20 || (c >= 0x7F && c < 0xA0);
  return control ? number : fmt::format("'{}' ({})", encode_utf8(c), number);
}

class Char : public TextStream {
 public:
  using Options = TextOptions;

  explicit Char(const Options& options)
      : TextStream(options.context), path_(options.path.resolved) {
    const std::u32string text = decode_utf8(MappedFile(path_).text(), path_.string());
    std::vector<uint32_t> id_of(0x110000);  // first: does it occur; then: its id
    for (char32_t c : text) id_of[c] = 1;
    for (char32_t c = 0; c < id_of.size(); ++c) {
      if (id_of[c] == 0) continue;
      id_of[c] = static_cast<uint32_t>(characters_.size());
      characters_ += c;
    }
    tokens_.reserve(text.size());
    for (char32_t c : text) tokens_.push_back(id_of[c]);
    add_splits(std::span<const uint32_t>(tokens_), options.train_share, path_);
  }

  int64_t vocabulary() const override { return std::ssize(characters_); }

  std::vector<std::string> token_texts() const override {
    std::vector<std::string> texts;
    for (char32_t c : characters_) texts.push_back(encode_utf8(c));
    return texts;
  }
  std::vector<uint8_t> token_classes() const override { return punctuation_classes(token_texts()); }

  bool has_text() const override { return true; }
  std::vector<int64_t> encode(const std::string& text) const override {
    std::vector<int64_t> ids;
    for (char32_t c : decode_utf8(text, "the text")) {
      const auto found = std::lower_bound(characters_.begin(), characters_.end(), c);
      if (found == characters_.end() || *found != c)
        throw DataError(fmt::format("{} is none of the {} characters of {}", named(c),
                                    characters_.size(), path_.string()));
      ids.push_back(found - characters_.begin());
    }
    return ids;
  }
  std::string decode(const std::vector<int64_t>& ids) const override {
    std::string text;
    for (int64_t id : ids) text += encode_utf8(characters_[checked_id(id)]);
    return text;
  }

  std::vector<std::filesystem::path> files() const override { return {path_}; }

 private:
  std::filesystem::path path_;
  std::u32string characters_;  // ascending; the place is the id
  std::vector<uint32_t> tokens_;
};

const RegisterData<Char> char_source("char", "the characters of a text file");

}  // namespace
}  // namespace headlab
