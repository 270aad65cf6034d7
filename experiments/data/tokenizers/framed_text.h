// Texts as a model reads them: with the tokens of the tokenizer's frame around them.
#pragma once

#include "experiments/data/tokenizers/tokenizer.h"

namespace headlab {

struct FramedText {
  Encoding tokens;             // those of the frame have no bytes and no word
  std::vector<int64_t> types;  // 1: of the second text, and of what ends it
};

// [begin] text [end]; with a second text, whose ranges and words are its own: ... second [end].
FramedText framed(const Tokenizer& tokenizer, const Encoding& text);
FramedText framed(const Tokenizer& tokenizer, const Encoding& text, const Encoding& second);

// Each word encoded by itself: its tokens have its number, and ranges within it. DataError as of
// Tokenizer::encode.
Encoding encode_words(const Tokenizer& tokenizer, const std::vector<std::string>& words,
                      const std::string& name);

}  // namespace headlab
