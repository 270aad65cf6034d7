// Words of a text: each predicts the next, or some are masked and the model says which they were.
#include <fmt/format.h>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/data/formats/plain_text.h"
#include "experiments/data/masked_text.h"
#include "experiments/data/text_stream.h"
#include "experiments/data/tokenizers/word_tokenizer.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

struct WordsOptions : TextOptions {
  FilePath validation;
  int64_t min_count = 1;
  std::string objective = "next";

  WordsOptions() : TextOptions(TestPart::Own::kFile) {}
  void visit(Fields& f) override {
    TextOptions::visit(f);
    f("validation", validation, "the text that validates (default: the end of path)");
    visit_test(f);
    f("min_count", min_count, "words that training has less often are unknown", at_least(1));
    f("objective", objective, "next: each word predicts the next; masked: some are to be filled in",
      one_of({"next", "masked"}));
  }
  void check(const Complain& complain) const override {
    TextOptions::check(complain);
    if (objective == "masked" && context < 3)
      complain("context", "must be at least 3: [CLS], a word, [SEP]");
  }
};

// Texts as the ids of their words, every end of a line a word of its own. The vocabulary is that of
// the text for training.
struct WordTexts {
  struct Part {
    fs::path path;
    std::vector<uint32_t> ids = {};
  };
  std::map<Split, Part> parts;
  std::shared_ptr<const Tokenizer> tokenizer;

  WordTexts(const WordsOptions& options, WordRules rules);
  std::vector<fs::path> files() const;
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

WordTexts::WordTexts(const WordsOptions& options, WordRules rules) {
  std::vector<std::unique_ptr<TextFile>> files;
  std::map<Split, std::string_view> texts;
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
  tokenizer = word_tokenizer(std::move(rules), std::move(words));
  for (auto& [split, part] : parts) {
    const auto ids = tokenizer->encode(texts[split], part.path.string()).ids;
    part.ids.assign(ids.begin(), ids.end());
  }
}

std::vector<fs::path> WordTexts::files() const {
  std::vector<fs::path> paths;
  for (const auto& [split, part] : parts)
    if (paths.empty() || part.path != paths.back()) paths.push_back(part.path);
  return paths;
}

class NextWords : public TextStream {
 public:
  explicit NextWords(const WordsOptions& options)
      : TextStream(options.context), texts_(options, {.specials = {"<unk>"}, .line_end = "<eos>"}) {
    for (const auto& [split, part] : texts_.parts) add_split(split, std::span(part.ids), part.path);
  }

  int64_t vocabulary() const override { return texts_.tokenizer->vocabulary(); }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return texts_.tokenizer; }
  std::vector<fs::path> files() const override { return texts_.files(); }

 private:
  WordTexts texts_;
};

std::shared_ptr<DataSource> masked_words(const WordsOptions& options) {
  enum : int64_t { kPad, kUnknown, kStart, kEnd, kMask };
  WordTexts texts(options, {.specials = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"},
                            .unknown = kUnknown,
                            .line_end = "<eos>"});
  std::map<Split, std::vector<uint32_t>> ids;
  for (auto& [split, part] : texts.parts) {
    const int64_t taken = options.context - 2;
    if (std::ssize(part.ids) < taken)
      throw DataError(
          fmt::format("{}: {} words for split {}, but a block takes context - 2 = "
                      "{}; use a smaller context or a longer text",
                      part.path.string(), part.ids.size(), split_name(split), taken));
    ids[split] = std::move(part.ids);
  }
  const DataShape shape{.vocabulary = texts.tokenizer->vocabulary(),
                        .context = options.context,
                        .pad = kPad,
                        .start = kStart,
                        .end = kEnd,
                        .mask = kMask};
  return masked_text(shape, texts.tokenizer, std::move(ids), texts.files());
}

struct RegisterWords {
  RegisterWords() {
    register_data({"words", "the words of a text: the next one, or masked ones",
                   [] { return std::make_shared<WordsOptions>(); },
                   [](const DataOptions& any) -> std::shared_ptr<DataSource> {
                     const auto& options = dynamic_cast<const WordsOptions&>(any);
                     if (options.objective == "masked") return masked_words(options);
                     return std::make_shared<NextWords>(options);
                   }});
  }
};
const RegisterWords words_source;

}  // namespace
}  // namespace headlab
