// Of the fuzzers of tokenizers: what is done with one that was read.
#pragma once

#include "experiments/data/tokenizers/tokenizer.h"
#include "tests/fuzz/fuzzing.h"

namespace headlab::fuzzing {

// Encodes a text, decodes it, and makes the tokenizer again of what it writes of itself.
inline void use(const Tokenizer& tokenizer, const std::string& name) {
  const std::string text = "Two heads, isn't it?\n 42 caf\xc3\xa9 [MASK]";
  Encoding encoding;
  try {
    encoding = tokenizer.encode(text, name);
  } catch (const std::runtime_error&) {  // a character that it does not know
  }
  for (const auto id : encoding.ids)
    require(id >= 0 && id < tokenizer.vocabulary(), "an id is not in the vocabulary");
  tokenizer.decode(encoding.ids);
  tokenizer.token_classes();
  const auto again = read_tokenizer(tokenizer.json());
  require(again->json() == tokenizer.json(), "the tokenizer reads back as another");
}

}  // namespace headlab::fuzzing
