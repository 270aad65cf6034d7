// A text that a command is given, as examples for a model that may have been trained on another.
#pragma once

#include "experiments/data/data_description.h"
#include "experiments/data/formats/plain_text.h"

namespace headlab {

// One split, kWhole, made as the splits of the data that `description` is of: windows of `context`
// tokens that do not overlap, each token predicting the next; where those mask words, blocks with
// words masked. A text that fills no window is one example, as long as it is. `files`: what was
// read. DataError for a text that the tokenizer does not know, and for one of too few tokens;
// ConfigError where an example takes more than one text.
std::shared_ptr<DataSource> given_text(const DataDescription& description, const SourceText& text,
                                       std::vector<std::filesystem::path> files = {});

}  // namespace headlab
