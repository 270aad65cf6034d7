// Parallel text, for models that translate: the source ends in </s>, the target begins behind <s>
// and ends in </s>, as fairseq and Marian have them.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/data/epochs.h"
#include "experiments/data/parallel_text.h"
#include "experiments/data/test_part.h"
#include "experiments/data/tokenizers/bpe_tokenizer.h"
#include "experiments/data/tokenizers/word_tokenizer.h"

namespace headlab {
namespace {

struct LinesOptions : DataOptions, TestPartOption {
  FilePath source, target, validation_source, validation_target, test_source, test_target;
  std::string tokens = "words";
  int64_t min_count = 2, vocabulary = 10000;

  LinesOptions() : TestPartOption(TestPart::Own::kWord) {}
  void visit(Fields& f) override {
    f("source", source, "the text to be translated, line by line");
    f("target", target, "its translation, as many lines");
    f("validation_source", validation_source, "the same for validation");
    f("validation_target", validation_target, "its translation");
    f("test_source", test_source, "the same for split test (default: none)");
    f("test_target", test_target, "its translation");
    visit_test(f, "test_source");
    f("tokens", tokens, "words between spaces, each side its own; bpe: pieces, both sides the same",
      one_of({"words", "bpe"}));
    f("min_count", min_count, "words that their side of training has less often are unknown",
      at_least(1));
    f("vocabulary", vocabulary, "of bpe, learned from both sides of training: tokens in all",
      at_least(4 + 256));
    f("context", context, "tokens of a line at most, with its end; a longer one is an error",
      at_least(2));
  }
  void check(const Complain& complain) const override {
    if (source.written.empty()) complain("source", "is needed: the text to be translated");
    if (target.written.empty()) complain("target", "is needed: the translation of source");
    const auto check_pair = [&](const char* name, const FilePath& one, const FilePath& other) {
      if (one.written.empty() && !other.written.empty())
        complain(name, "is needed where the other of the two texts is named");
    };
    if (validation_source.written.empty() && validation_target.written.empty())
      complain("validation_source", "is needed: what training is measured on");
    check_pair("validation_source", validation_source, validation_target);
    check_pair("validation_target", validation_target, validation_source);
    check_pair("test_source", test_source, test_target);
    check_pair("test_target", test_target, test_source);
  }
};

class LinePairs : public FiniteSource {
 public:
  using Options = LinesOptions;

  explicit LinePairs(const Options& options) : context_(options.context) {
    const ParallelText training(options.source.resolved, options.target.resolved);
    options.tokens == "bpe" ? learn_pieces(training, options) : learn_words(training, options);
    add(Split::kTrain, training);
    const auto read = [&](Split split, const FilePath& source, const FilePath& target) {
      if (!source.written.empty()) add(split, ParallelText(source.resolved, target.resolved));
    };
    read(Split::kValidation, options.validation_source, options.validation_target);
    read(Split::kTest, options.test_source, options.test_target);
    sort();
  }

  int64_t vocabulary() const override { return tokenizer_->vocabulary(); }
  int64_t context() const override { return context_; }
  DataShape shape() const override {
    return {.vocabulary = vocabulary(),
            .context = context_,
            .source_vocabulary = source_tokenizer_->vocabulary(),
            .source_context = context_,
            .pad = kPad,
            .start = kStart,
            .end = kEnd};
  }
  int64_t examples(Split split) const override {
    const auto found = pairs_.find(split);
    return found == pairs_.end() ? 0 : found->second.source.size();
  }

  std::string written(Split split, int64_t n) const override {
    return pairs_.at(split).written.at(n);
  }

  int64_t sized_batches(int64_t positions) const override {
    return std::ssize(sized_ends(positions));
  }
  Batch sized_batch(uint64_t seed, int64_t index, int64_t positions) const override {
    const auto ends = sized_ends(positions);
    const int64_t N = std::ssize(ends);
    TORCH_CHECK(index >= 0, "no batch ", index, " of epochs of ", N);
    const int64_t n = shuffled(seed, index / N, index % N, N);
    return batch_of(Split::kTrain,
                    {sorted_.begin() + (n == 0 ? 0 : ends[n - 1]), sorted_.begin() + ends[n]});
  }

 private:
  enum : int64_t { kPad, kUnknown, kStart, kEnd };
  struct Pairs {
    TokenLines source, target;
    std::vector<std::string> written;  // the target's lines
    // Positions that a pair takes in a batch of what is as long: <s> or </s> is one.
    int64_t width(int64_t n) const { return std::max(source.length(n), target.length(n)) + 1; }
  };

  static std::vector<std::string> specials() { return {"<pad>", "<unk>", "<s>", "</s>"}; }

  void learn_words(const ParallelText& text, const Options& options) {
    const WordRules rules{specials(), kUnknown};
    const auto known = [&](const ParallelText::Side& side) {
      return word_tokenizer(rules, frequent_words(side.lines, rules, options.min_count));
    };
    source_tokenizer_ = known(text.source), tokenizer_ = known(text.target);
  }
  void learn_pieces(const ParallelText& text, const Options& options) {
    auto lines = text.source.lines;
    lines.insert(lines.end(), text.target.lines.begin(), text.target.lines.end());
    tokenizer_ = bpe_tokenizer(train_bpe(lines, specials(), options.vocabulary));
    source_tokenizer_ = tokenizer_;
  }

  void add(Split split, const ParallelText& text) {
    for (const auto* side : {&text.source, &text.target}) files_.push_back(side->path);
    pairs_.emplace(split, Pairs{{text.source, *source_tokenizer_, context_ - 1},
                                {text.target, *tokenizer_, context_ - 1},
                                {text.target.lines.begin(), text.target.lines.end()}});
  }

  // By target, then source length: what stands together is about as long on both sides.
  void sort() {
    const auto& pairs = pairs_.at(Split::kTrain);
    const auto both = [&](int64_t n) {
      return std::pair(pairs.target.length(n), pairs.source.length(n));
    };
    sorted_.resize(pairs.source.size());
    std::iota(sorted_.begin(), sorted_.end(), 0);
    std::stable_sort(sorted_.begin(), sorted_.end(),
                     [&](int64_t a, int64_t b) { return both(a) < both(b); });
  }

  // Where each batch ends in the order by length: one takes as many as fit. (A pass over all
  // lengths takes microseconds; nothing has to be kept.)
  std::vector<int64_t> sized_ends(int64_t positions) const {
    const auto& pairs = pairs_.at(Split::kTrain);
    std::vector<int64_t> ends;
    int64_t first = 0, widest = 0;
    for (int64_t place = 0; place < std::ssize(sorted_); ++place) {
      const int64_t width = pairs.width(sorted_[place]);
      if (width > positions)
        throw ConfigError(
            fmt::format("train.max_positions: {} are fewer than the {} that line {} "
                        "of {} takes alone",
                        positions, width, sorted_[place] + 1, files_[0].string()));
      widest = std::max(widest, width);
      if ((place + 1 - first) * widest > positions) {
        ends.push_back(place);
        first = place, widest = width;
      }
    }
    ends.push_back(std::ssize(sorted_));
    return ends;
  }

  Batch batch_of(Split split, const std::vector<int64_t>& numbers) const override {
    const auto& pairs = pairs_.at(split);
    const auto rows = [&](const TokenLines& lines) {
      TokenRows made;
      for (const int64_t n : numbers) {
        const auto tokens = lines.tokens(n);
        made.emplace_back(tokens.begin(), tokens.end()).push_back(kEnd);
      }
      return made;
    };
    return pair_batch(rows(pairs.source), rows(pairs.target), kStart, kPad);
  }

  int64_t context_;
  std::map<Split, Pairs> pairs_;
  std::vector<int64_t> sorted_;  // numbers of the pairs for training
};

const RegisterData<LinePairs> lines_source("lines", "pairs of lines: a text and its translation");

}  // namespace
}  // namespace headlab
