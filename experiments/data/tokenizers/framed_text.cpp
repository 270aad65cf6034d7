#include "experiments/data/tokenizers/framed_text.h"

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

}  // namespace headlab
