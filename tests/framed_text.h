// Texts as a model reads them: with the tokens of the tokenizer's frame around them.
#pragma once

#include "experiments/data/tokenizers/tokenizer.h"

namespace headlab {

struct FramedText {
  Encoding tokens;             // those of the frame have no bytes and no word
  std::vector<int64_t> types;  // 1: of the second text, and of what ends it
};

inline void add_text(FramedText& framed, const Encoding& text, std::optional<int64_t> end,
                     int64_t type) {
  framed.tokens.append(text);
  if (end) framed.tokens.add(*end, {}, -1);
  framed.types.resize(framed.tokens.ids.size(), type);
}

// [begin] text [end]; with a second text, whose ranges and words are its own: ... second [end].
inline FramedText framed(const Tokenizer& tokenizer, const Encoding& text) {
  const auto frame = tokenizer.frame();
  FramedText made;
  if (frame.begin) made.tokens.add(*frame.begin, {}, -1);
  add_text(made, text, frame.end, 0);
  return made;
}

inline FramedText framed(const Tokenizer& tokenizer, const Encoding& text, const Encoding& second) {
  auto made = framed(tokenizer, text);
  add_text(made, second, tokenizer.frame().end, 1);
  return made;
}

}  // namespace headlab
