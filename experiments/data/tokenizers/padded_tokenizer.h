// A tokenizer for a model that has more tokens than it, for published ones round their number up;
// or fewer, where some were added that the model never saw.
#pragma once

#include "experiments/data/tokenizers/tokenizer.h"

namespace headlab {

// How an id without a token is shown.
inline std::string text_of_no_token(int64_t id) { return "<" + std::to_string(id) + ">"; }

// The same with a vocabulary of so many: no text has the ids at the end, and they have none; a text
// with a token behind the end is refused (DataError `name:line: ...`). Itself where it has as many.
// DataError where it has a million fewer, or would put a token behind the end beside every text.
std::shared_ptr<const Tokenizer> padded_tokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                                  int64_t vocabulary);

}  // namespace headlab
