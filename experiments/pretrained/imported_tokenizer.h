// The tokenizer that comes in with a model.
#pragma once

#include "experiments/data/data_description.h"
#include "experiments/data/tokenizers/tokenizer_files.h"
#include "experiments/pretrained/hugging_face.h"

namespace headlab {

// Beside the weights, or in them, into the description; with the reason instead where it cannot be
// this model's, for ids do without. Tells on stderr that some of its tokens have no row. DataError
// for files that are damaged.
FoundTokenizer take_tokenizer(const std::filesystem::path& model, const HuggingFaceModel& made,
                              DataDescription& description);

}  // namespace headlab
