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

}  // namespace headlab
