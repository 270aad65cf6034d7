// Characters of a text file: a token is a code point, the vocabulary is what occurs in the text, in
// ascending order. Splits and ids are those of nanoGPT's data/shakespeare_char/prepare.py.
#include "core/files/mapped_file.h"
#include "experiments/data/char_tokenizer.h"
#include "experiments/data/text_stream.h"

namespace headlab {
namespace {

class Char : public TextStream {
 public:
  using Options = TextOptions;

  explicit Char(const Options& options)
      : TextStream(options.context), path_(options.path.resolved) {
    const std::u32string text = decode_utf8(MappedFile(path_).text(), path_.string());
    std::u32string characters;
    std::vector<uint32_t> id_of(0x110000);  // first: does it occur; then: its id
    for (char32_t c : text) id_of[c] = 1;
    for (char32_t c = 0; c < id_of.size(); ++c) {
      if (id_of[c] == 0) continue;
      id_of[c] = static_cast<uint32_t>(characters.size());
      characters += c;
    }
    tokens_.reserve(text.size());
    for (char32_t c : text) tokens_.push_back(id_of[c]);
    add_splits(std::span<const uint32_t>(tokens_), options.train_share, path_);
    tokenizer_ = char_tokenizer(std::move(characters));
  }

  int64_t vocabulary() const override { return tokenizer_->vocabulary(); }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return tokenizer_; }
  std::vector<std::filesystem::path> files() const override { return {path_}; }

 private:
  std::filesystem::path path_;
  std::vector<uint32_t> tokens_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

const RegisterData<Char> char_source("char", "the characters of a text file");

}  // namespace
}  // namespace headlab
