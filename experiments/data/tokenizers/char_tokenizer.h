// Characters as tokens: a token is a code point, the place among the known ones its id.
#pragma once

#include "experiments/data/tokenizers/tokenizer.h"

namespace headlab {

// `characters`: ascending, at least one. DataError where they are not.
std::shared_ptr<const Tokenizer> char_tokenizer(std::u32string characters);

}  // namespace headlab
