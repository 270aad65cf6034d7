// Tokenizers as others publish them beside a model: Hugging Face's files, GGUF's settings.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "experiments/data/tokenizers/tokenizer.h"
#include "experiments/files/gguf.h"

namespace headlab {

struct FoundTokenizer {
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;  // null: none that this version can do
  std::string reason = {};                               // why, then: file, place and what it says
  std::vector<std::filesystem::path> files = {};         // what was read, absolute
  std::optional<int64_t> max_length = {};                // tokens that its makers cut texts to
};

// Of tokenizer.json, else of vocab.txt (WordPiece), else of vocab.json and merges.txt (byte-level
// BPE); tokenizer_config.json tells what the last two leave open. DataError `file: place: what` for
// files that are damaged.
FoundTokenizer read_tokenizer_folder(const std::filesystem::path& folder);
// `name` is what messages call the file.
FoundTokenizer read_gguf_tokenizer(const GgufFile& file, const std::string& name);

// Files that read_tokenizer_folder and transformers' AutoTokenizer make the same tokenizer of,
// into a folder that is there; `max_length` as above. ConfigError for a kind that no such file
// describes.
void write_tokenizer_folder(const Tokenizer& tokenizer, const std::filesystem::path& folder,
                            std::optional<int64_t> max_length = {});

}  // namespace headlab
