#include "experiments/pretrained/imported_tokenizer.h"

#include "core/errors.h"
#include "experiments/system/output.h"

namespace headlab {
namespace {

FoundTokenizer find_tokenizer(const std::filesystem::path& model, const DataShape& shape) {
  if (shape.vocabulary == 0) return {.reason = "it reads images"};
  if (shape.source_vocabulary > 0)
    return {.reason = "tokenizers of models that translate are not known here"};
  if (model.extension() == ".gguf") return read_gguf_tokenizer(GgufFile(model), model.string());
  return read_tokenizer_folder(model);
}

}  // namespace

FoundTokenizer take_tokenizer(const std::filesystem::path& model, const HuggingFaceModel& made,
                              DataDescription& description) {
  auto found = find_tokenizer(model, made.shape);
  if (!found.tokenizer) return found;
  try {
    add_tokenizer(description, found.tokenizer);
  } catch (const DataError& refusal) {
    return {.reason = refusal.what()};
  }
  description.max_length = found.max_length;
  const auto tokens = found.tokenizer->vocabulary(), rows = description.shape.vocabulary;
  if (tokens > rows)
    tell(
        "import: the tokenizer has {} tokens, the model {}: a text with one of the others is "
        "refused",
        tokens, rows);
  return found;
}

}  // namespace headlab
