// Words of a text: each predicts the next, or some are masked and the model says which they were.
#include "experiments/data/formats/plain_text.h"
#include "experiments/data/masked_text.h"
#include "experiments/data/text_encoding.h"
#include "experiments/data/tokenizers/word_tokenizer.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

struct WordsOptions : TextPartsOptions {
  int64_t min_count = 1;

  void visit(Fields& f) override {
    TextPartsOptions::visit(f);
    f("min_count", min_count, "words that training has less often are unknown", at_least(1));
    visit_objective(f, "next: each word predicts the next; masked: some are to be filled in");
  }
  void check(const Complain& complain) const override {
    TextOptions::check(complain);
    if (masks() && context < 3) complain("context", "must be at least 3: [CLS], a word, [SEP]");
  }
};

// Where the first `share` of a text ends: with a line, else with a word. The end of a line counts
// as one byte, so that a text is cut at the same word whether its lines end in LF or in CRLF.
size_t end_of_share(std::string_view text, double share) {
  size_t doubled = 0;
  for (size_t at = 0; at < text.size(); ++at) doubled += line_end_at(text, at) == 2;
  auto left = static_cast<size_t>(static_cast<double>(text.size() - doubled) * share);
  size_t part = 0;
  for (; left > 0; --left) part += line_end_at(text, part) == 2 ? 2 : 1;
  for (const char separator : {'\n', ' '})
    if (const auto at = text.find(separator, part); at < text.size()) return at + 1;
  return text.size();
}

// Texts as the ids of their words, every end of a line a word of its own. The vocabulary is that of
// the text for training.
std::shared_ptr<DataSource> words_by(const WordsOptions& options, WordRules rules,
                                     DataShape shape) {
  std::vector<std::unique_ptr<TextFile>> files;
  std::map<Split, std::string_view> texts;
  TextParts parts;
  const auto read = [&](Split split, const FilePath& path) {
    if (path.written.empty()) return;
    const auto& file = *files.emplace_back(std::make_unique<TextFile>(path.resolved));
    decode_utf8(file.text(), path.resolved.string(), [](char32_t) {});  // refuses what is none
    texts[split] = file.text(), parts[split] = {path.resolved};
  };
  read(Split::kTrain, options.path);
  read(Split::kValidation, options.validation);
  read(Split::kTest, options.test.file());
  auto& training = texts[Split::kTrain];
  if (options.validation.written.empty()) {
    const auto cut = end_of_share(training, options.train_share);
    texts[Split::kValidation] = training.substr(cut), training = training.substr(0, cut);
    parts[Split::kValidation] = {options.path.resolved};
  }
  auto words = frequent_words({training}, rules, options.min_count);
  const auto tokenizer = word_tokenizer(std::move(rules), std::move(words));
  for (auto& [split, part] : parts) {
    part.ids = encode_in_memory(*tokenizer, texts[split], part.path.string(),
                                {.threads = encoding_threads()});
  }
  std::vector<fs::path> paths;
  for (const auto& [split, part] : parts)
    if (paths.empty() || part.path != paths.back()) paths.push_back(part.path);
  shape.vocabulary = tokenizer->vocabulary();
  return text_in_parts(options, shape, tokenizer, std::move(parts), std::move(paths), "words");
}

std::shared_ptr<DataSource> open_words(const WordsOptions& options) {
  if (!options.masks()) return words_by(options, {.specials = {"<unk>"}, .line_end = "<eos>"}, {});
  enum : int64_t { kPad, kUnknown, kStart, kEnd, kMask };
  return words_by(options,
                  {.specials = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"},
                   .unknown = kUnknown,
                   .line_end = "<eos>"},
                  {.pad = kPad, .start = kStart, .end = kEnd, .mask = kMask});
}

const RegisterOpening words_source("words", "the words of a text: the next one, or masked ones",
                                   open_words);

}  // namespace
}  // namespace headlab
