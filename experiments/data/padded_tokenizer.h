// A tokenizer for a model that has more tokens than it: published ones round their number up.
#pragma once

#include "experiments/data/tokenizer.h"

namespace headlab {

// The same with a vocabulary of so many: no text has the ids at the end, and they have none. Itself
// where it has as many. DataError where it has more, or a million fewer.
std::shared_ptr<const Tokenizer> padded_tokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                                  int64_t vocabulary);

}  // namespace headlab
