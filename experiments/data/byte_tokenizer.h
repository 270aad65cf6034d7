// Bytes as tokens: the id is the byte, and no text is refused.
#pragma once

#include "experiments/data/tokenizer.h"

namespace headlab {

std::shared_ptr<const Tokenizer> byte_tokenizer();

}  // namespace headlab
