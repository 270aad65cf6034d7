// A text in the tokens of a model that exists: each predicts the next, or some are masked.
#include <fmt/format.h>

#include "core/errors.h"
#include "experiments/data/data_description.h"
#include "experiments/data/folder_files.h"
#include "experiments/data/masked_text.h"
#include "experiments/data/token_cache.h"
#include "experiments/data/tokenizers/byte_tokenizer.h"
#include "experiments/data/tokenizers/tokenizer_files.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

struct TextDataOptions : TextPartsOptions, ReadsFolder {
  FilePath tokenizer;

  void visit(Fields& f) override {
    TextPartsOptions::visit(f);
    f("tokenizer", tokenizer,
      "a run, or a folder with tokenizer.json or vocab.txt (default: the run that init names)");
    visit_objective(f, "next: each token predicts the next; masked: some are to be filled in");
  }
  // Of a tokenizer.
  std::vector<fs::path> files_in(const fs::path& folder) const override {
    auto kept = files_of_names(folder, {"data.json"});
    return kept.empty() ? read_tokenizer_folder(folder).files : kept;
  }
  void check(const Complain& complain) const override {
    TextOptions::check(complain);
    if (masks() && context < 3)
      complain("context",
               "must be at least 3: a token that begins, one of the text, one that ends");
  }
};

DataDescription description_of(const TextDataOptions& options) {
  if (options.tokenizer.written.empty())
    throw ConfigError(
        "data.tokenizer: is needed: a run, or a folder with tokenizer.json; init: RUN names one, "
        "too");
  const auto& path = options.tokenizer.resolved;
  if (auto kept = read_data_text(path)) {
    if (!kept->tokenizer)
      throw ConfigError(fmt::format("data.tokenizer: {} has no tokenizer", path.string()));
    return std::move(*kept);
  }
  const auto found = read_tokenizer_folder(path);
  if (!found.tokenizer) throw ConfigError("data.tokenizer: " + found.reason);
  return described_tokens(found.tokenizer);
}

std::shared_ptr<DataSource> open_text(const TextDataOptions& options) {
  const auto description = description_of(options);
  const auto& shape = description.shape;
  const auto& tokenizer = *description.tokenizer;
  if (options.masks() && (!shape.start || !shape.end || !shape.mask))
    throw ConfigError(
        "data.objective: masked needs a tokenizer with tokens that begin, end and mask, as BERT's");
  std::vector<fs::path> files;
  const auto encode = [&](const FilePath& path) -> TextPart {
    files.push_back(path.resolved);
    return {path.resolved, tokens_of(tokenizer, file_for(tokenizer, path.resolved))};
  };
  TextParts parts{{Split::kTrain, encode(options.path)}};
  auto& ids = parts[Split::kTrain].ids;
  if (options.validation.written.empty()) {
    const auto all = ids.size();
    const auto cut = static_cast<int64_t>(static_cast<double>(all) * options.train_share);
    parts[Split::kValidation] = {options.path.resolved, ids.part(cut, all - cut)};
    ids = ids.part(0, cut);
  } else {
    parts[Split::kValidation] = encode(options.validation);
  }
  const auto& test = options.test.file();
  if (!test.written.empty()) parts[Split::kTest] = encode(test);
  return text_in_parts(options, shape, description.tokenizer, std::move(parts), std::move(files),
                       "tokens");
}

const RegisterOpening text_data("text", "a text in the tokens of a model that exists", open_text);

}  // namespace
}  // namespace headlab
