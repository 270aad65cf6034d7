// A text that a command is given, as it stands or in a file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/data/tokenizers/tokenizer.h"

namespace headlab {

struct NamedText {
  std::string text, name;                    // what errors call it
  std::vector<std::filesystem::path> files;  // absolute
};

// As `tokenizer` reads files; null: as text. DataError where it cannot be read.
NamedText text_of_file(const std::string& path, const Tokenizer* tokenizer);
// The file that is called `given`, or `given` itself. DataError for what looks like a path, one
// word with a / or an extension, where no file is called so. `option`: who it is given to.
NamedText text_or_file(const std::string& option, const std::string& given,
                       const Tokenizer* tokenizer);

}  // namespace headlab
