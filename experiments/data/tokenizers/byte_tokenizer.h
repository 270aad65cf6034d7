// Bytes as tokens: the id is the byte, and no text is refused.
#pragma once

#include <filesystem>

#include "experiments/data/formats/plain_text.h"
#include "experiments/data/tokenizers/tokenizer.h"

namespace headlab {

std::shared_ptr<const Tokenizer> byte_tokenizer();

// The text of a file as this tokenizer's, mapped: one of bytes takes all of them, any other a text
// without its byte order mark. DataError as of TextFile.
SourceText file_for(const Tokenizer& tokenizer, const std::filesystem::path& path);

}  // namespace headlab
