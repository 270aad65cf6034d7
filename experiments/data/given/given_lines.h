// Pairs of lines that a command is given, for a model that translates and was trained on others.
#pragma once

#include "experiments/data/data_description.h"

namespace headlab {

// One split, kWhole: of every line what is translated, a tab, and its translation. In the tokens of
// the model's tokenizers; where it has none, numbers of tokens with blanks between them, as its own
// tokenizer makes them. The token that ends a text is put where it is not written. DataError
// `path:line: ...` for a line that is no such pair, is longer than the context, or names no token.
std::shared_ptr<DataSource> given_lines(const DataDescription& description,
                                        const std::filesystem::path& path);

}  // namespace headlab
