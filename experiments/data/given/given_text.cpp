#include "experiments/data/given/given_text.h"

#include <algorithm>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/data/masked_text.h"
#include "experiments/data/sequences.h"
#include "experiments/data/token_cache.h"

namespace headlab {
namespace {

class GivenText : public SequenceSource {
 public:
  GivenText(std::shared_ptr<const Tokenizer> tokenizer, TokenIds tokens, int64_t context,
            std::vector<std::filesystem::path> files)
      : SequenceSource(std::min<int64_t>(context, tokens.size())), tokens_(std::move(tokens)) {
    tokenizer_ = std::move(tokenizer), files_ = std::move(files);
  }

  int64_t vocabulary() const override { return tokenizer_->vocabulary(); }
  int64_t examples(Split split) const override {
    if (split != Split::kWhole) return 0;
    return std::max<int64_t>(1, (tokens_.size() - 1) / context());
  }
  SplitTokens tokens(Split split) const override {
    return windowed_tokens(tokens_.size(), examples(split) * context());
  }
  Split evaluated() const override { return Split::kWhole; }

 private:
  void train_example(uint64_t, int64_t*, int64_t*) const override {
    TORCH_CHECK(false, "a text that was given has no split to train on");
  }
  void eval_example(Split, int64_t n, int64_t* ids, int64_t* targets) const override {
    const int64_t first = n * context();
    tokens_.copy(first, context(), ids);
    std::fill_n(targets, context(), kIgnored);  // nothing follows the text's last token
    tokens_.copy(first + 1, std::min(context(), tokens_.size() - first - 1), targets);
  }

  TokenIds tokens_;
};

}  // namespace

std::shared_ptr<DataSource> given_text(const DataDescription& description, const SourceText& text,
                                       std::vector<std::filesystem::path> files) {
  const auto& name = text.name;
  auto shape = description.shape;
  if (shape.source_vocabulary > 0)
    throw ConfigError(name +
                      ": the run's data are texts with their translations, and this is one text; "
                      "headlab generate RUN --input FILE translates it");
  auto tokens = tokens_of(*description.tokenizer, text);
  const int64_t N = tokens.size();
  if (shape.mask) {
    if (N == 0) throw DataError(name + ": is empty: there is no word to be masked");
    shape.context = std::min(shape.context, N + 2);
    return masked_text(shape, description.tokenizer, {{Split::kWhole, std::move(tokens)}},
                       std::move(files));
  }
  if (N < 2)
    throw DataError(name + ": is too short: of two tokens or more, the first predicts the next");
  return std::make_shared<GivenText>(description.tokenizer, std::move(tokens), shape.context,
                                     std::move(files));
}

}  // namespace headlab
