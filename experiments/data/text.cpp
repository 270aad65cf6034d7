// A text in the tokens of a model that exists: each predicts the next, or some are masked.
#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "experiments/data/data_description.h"
#include "experiments/data/folder_files.h"
#include "experiments/data/masked_text.h"
#include "experiments/data/text_stream.h"
#include "experiments/data/tokenizers/byte_tokenizer.h"
#include "experiments/data/tokenizers/tokenizer_files.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

struct TextDataOptions : TextOptions, ReadsFolder {
  FilePath validation, tokenizer;
  std::string objective = "next";

  TextDataOptions() : TextOptions(TestPart::Own::kFile) {}
  void visit(Fields& f) override {
    TextOptions::visit(f);
    f("validation", validation, "the text that validates (default: the end of path)");
    visit_test(f);
    f("tokenizer", tokenizer,
      "a run, or a folder with tokenizer.json or vocab.txt (default: the run that init names)");
    f("objective", objective,
      "next: each token predicts the next; masked: some are to be filled in",
      one_of({"next", "masked"}));
  }
  // Of a tokenizer.
  std::vector<fs::path> files_in(const fs::path& folder) const override {
    auto kept = files_of_names(folder, {"data.json"});
    return kept.empty() ? read_tokenizer_folder(folder).files : kept;
  }
  void check(const Complain& complain) const override {
    TextOptions::check(complain);
    if (objective == "masked" && context < 3)
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

// Files as tokens, by split.
class TokenTexts {
 public:
  TokenTexts(const TextDataOptions& options, const Tokenizer& tokenizer) {
    const auto whole = encode(options.path.resolved, tokenizer);
    if (options.validation.written.empty()) {
      const auto share = static_cast<double>(whole.size()) * options.train_share;
      const auto cut = whole.begin() + static_cast<int64_t>(share);
      ids[Split::kTrain] = {whole.begin(), cut};
      ids[Split::kValidation] = {cut, whole.end()};
    } else {
      ids[Split::kTrain] = whole;
      ids[Split::kValidation] = encode(options.validation.resolved, tokenizer);
    }
    const auto& test = options.test.file();
    if (!test.written.empty()) ids[Split::kTest] = encode(test.resolved, tokenizer);
  }

  std::map<Split, std::vector<uint32_t>> ids;
  std::vector<fs::path> files;

 private:
  std::vector<uint32_t> encode(const fs::path& path, const Tokenizer& tokenizer) {
    files.push_back(path);
    const auto all = tokenizer.encode(file_for(tokenizer, path), path.string()).ids;
    return {all.begin(), all.end()};
  }
};

class NextTokens : public TextStream {
 public:
  NextTokens(const TextDataOptions& options, DataDescription description)
      : TextStream(options.context),
        description_(std::move(description)),
        texts_(options, *description_.tokenizer) {
    for (const auto& [split, ids] : texts_.ids)
      add_split(split, std::span(ids), options.path.resolved);
  }

  int64_t vocabulary() const override { return description_.shape.vocabulary; }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return description_.tokenizer; }
  std::vector<std::string> token_texts() const override { return description_.token_texts; }
  std::vector<uint8_t> token_classes() const override { return description_.token_classes; }
  std::vector<fs::path> files() const override { return texts_.files; }

 private:
  DataDescription description_;
  TokenTexts texts_;
};

std::shared_ptr<DataSource> masked_tokens(const TextDataOptions& options,
                                          DataDescription description) {
  auto shape = description.shape;
  if (!shape.start || !shape.end || !shape.mask)
    throw ConfigError(
        "data.objective: masked needs a tokenizer with tokens that begin, end and mask, as BERT's");
  TokenTexts texts(options, *description.tokenizer);
  shape.context = options.context;
  for (const auto& [split, ids] : texts.ids)
    if (std::ssize(ids) < options.context - 2)
      throw DataError(fmt::format(
          "{}: {} tokens for split {}, but a block takes context - 2 = {}; use a smaller context "
          "or a longer text",
          options.path.resolved.string(), ids.size(), split_name(split), options.context - 2));
  return masked_text(shape, description.tokenizer, std::move(texts.ids), std::move(texts.files));
}

struct RegisterText {
  RegisterText() {
    register_data({"text", "a text in the tokens of a model that exists",
                   [] { return std::make_shared<TextDataOptions>(); },
                   [](const DataOptions& any) -> std::shared_ptr<DataSource> {
                     const auto& options = dynamic_cast<const TextDataOptions&>(any);
                     auto description = description_of(options);
                     if (options.objective == "masked")
                       return masked_tokens(options, std::move(description));
                     return std::make_shared<NextTokens>(options, std::move(description));
                   }});
  }
};
const RegisterText text_data;

}  // namespace
}  // namespace headlab
