// Characters of a text file: a token is a code point, the vocabulary is what occurs in the text, in
// ascending order. Splits and ids are those of nanoGPT's data/shakespeare_char/prepare.py.
#include "experiments/data/formats/plain_text.h"
#include "experiments/data/text_stream.h"
#include "experiments/data/tokenizers/char_tokenizer.h"

namespace headlab {
namespace {

class Char : public TextStream {
 public:
  using Options = OneTextOptions;

  explicit Char(const Options& options) : TextStream(options.context) {
    const auto& path = files_.emplace_back(options.path.resolved);
    const TextFile file(path);
    const auto decode = [&](const std::function<void(char32_t)>& take) {
      decode_utf8(file.text(), path.string(), take);
    };
    // Twice over the text, so that one of gigabytes is never held as code points.
    std::vector<uint32_t> id_of(0x110000);  // first: does it occur; then: its id
    size_t count = 0;
    decode([&](char32_t c) { id_of[c] = 1, ++count; });
    std::u32string characters;
    for (char32_t c = 0; c < id_of.size(); ++c) {
      if (id_of[c] == 0) continue;
      id_of[c] = static_cast<uint32_t>(characters.size());
      characters += c;
    }
    const auto fill = [&](auto& tokens) {
      tokens.reserve(count);
      decode([&](char32_t c) {
        tokens.push_back(
            static_cast<typename std::decay_t<decltype(tokens)>::value_type>(id_of[c]));
      });
      add_splits(std::span(std::as_const(tokens)), options.train_share, path);
    };
    if (characters.size() <= 0x100)
      fill(byte_tokens_);
    else if (characters.size() <= 0x10000)
      fill(tokens_);
    else
      fill(wide_tokens_);
    tokenizer_ = char_tokenizer(std::move(characters));
  }

  int64_t vocabulary() const override { return tokenizer_->vocabulary(); }

 private:
  std::vector<uint8_t> byte_tokens_;   // of up to 256 characters
  std::vector<uint16_t> tokens_;       // of up to 65,536 characters
  std::vector<uint32_t> wide_tokens_;  // of more
};

const RegisterData<Char> char_source("char", "the characters of a text file");

}  // namespace
}  // namespace headlab
