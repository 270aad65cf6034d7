// A text that a command is given, as examples for a model that may have been trained on another.
#pragma once

#include <string_view>

#include "experiments/data/source.h"

namespace headlab {

// One split, kWhole: windows of `context` tokens that do not overlap, each token predicting the
// next, as the splits of a text file; a text of `context` tokens or fewer is one example, as long
// as it is. `name` is what messages call it, `files` what was read. DataError for a text that the
// tokenizer does not know, and for one of fewer than two tokens.
std::shared_ptr<DataSource> given_text(std::shared_ptr<const Tokenizer> tokenizer,
                                       std::string_view text, const std::string& name,
                                       int64_t context,
                                       std::vector<std::filesystem::path> files = {});

}  // namespace headlab
