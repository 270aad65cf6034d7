#include "experiments/data/tokenizers/framed_text.h"

#include <fmt/format.h>

namespace headlab {
namespace {

void add(FramedText& framed, const Encoding& text, std::optional<int64_t> end, int64_t type) {
  framed.tokens.append(text);
  if (end) framed.tokens.add(*end, {}, -1);
  framed.types.resize(framed.tokens.ids.size(), type);
}

}  // namespace

FramedText framed(const Tokenizer& tokenizer, const Encoding& text) {
  const auto frame = tokenizer.frame();
  FramedText made;
  if (frame.begin) made.tokens.add(*frame.begin, {}, -1);
  add(made, text, frame.end, 0);
  return made;
}

FramedText framed(const Tokenizer& tokenizer, const Encoding& text, const Encoding& second) {
  auto made = framed(tokenizer, text);
  add(made, second, tokenizer.frame().end, 1);
  return made;
}

Encoding encode_words(const Tokenizer& tokenizer, const std::vector<std::string>& words,
                      const std::string& name) {
  Encoding all;
  for (size_t n = 0; n < words.size(); ++n) {
    auto word = tokenizer.encode(words[n], fmt::format("{}, word {}", name, n + 1));
    word.words.assign(word.ids.size(), static_cast<int64_t>(n));
    all.append(word);
  }
  return all;
}

}  // namespace headlab
