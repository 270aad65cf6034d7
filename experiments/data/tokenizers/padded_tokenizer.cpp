#include "experiments/data/tokenizers/padded_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "experiments/files/json_text.h"

namespace headlab {
namespace {

constexpr int64_t kMostUnused = 1 << 20;

class PaddedTokenizer : public Tokenizer {
 public:
  PaddedTokenizer(std::shared_ptr<const Tokenizer> tokenizer, int64_t vocabulary)
      : tokenizer_(std::move(tokenizer)), vocabulary_(vocabulary) {}

  int64_t vocabulary() const override { return vocabulary_; }
  Encoding encode(std::string_view text, const std::string& name) const override {
    auto encoding = tokenizer_->encode(text, name);
    for (size_t n = 0; n < encoding.ids.size(); ++n)
      if (encoding.ids[n] >= vocabulary_) refuse(encoding.ids[n], encoding.ranges[n], text, name);
    return encoding;
  }
  size_t next_cut(std::string_view text, size_t from) const override {
    return tokenizer_->next_cut(text, from);
  }
  std::string bytes(int64_t id, std::optional<int64_t> before) const override {
    if (is_unused(checked_id(id))) return "";
    if (before && is_unused(*before)) before.reset();
    return tokenizer_->bytes(id, before);
  }
  std::string decode(const std::vector<int64_t>& ids) const override {
    std::vector<int64_t> used;
    for (int64_t id : ids)
      if (!is_unused(checked_id(id))) used.push_back(id);
    return tokenizer_->decode(used);
  }
  std::vector<std::string> token_texts() const override {
    auto texts = tokenizer_->token_texts();
    texts.resize(std::min<size_t>(texts.size(), vocabulary_));
    while (std::ssize(texts) < vocabulary_) texts.push_back(text_of_no_token(std::ssize(texts)));
    return texts;
  }
  std::vector<uint8_t> token_classes() const override {
    auto classes = tokenizer_->token_classes();
    classes.resize(vocabulary_, kWord);
    return classes;
  }
  std::vector<int64_t> specials() const override {
    auto ids = tokenizer_->specials();
    std::erase_if(ids, [&](int64_t id) { return id >= vocabulary_; });
    return ids;
  }
  TextFrame frame() const override { return tokenizer_->frame(); }

  nlohmann::ordered_json json() const override {
    return {{"kind", "padded"}, {"vocabulary", vocabulary_}, {"tokenizer", tokenizer_->json()}};
  }

 private:
  [[noreturn]] void refuse(int64_t id, const TextRange& range, std::string_view text,
                           const std::string& name) const {
    const auto before = text.substr(0, range.begin);
    throw LineError(name, std::ranges::count(before, '\n') + 1,
                    fmt::format("'{}' is token {}, and the model's are 0 to {}",
                                tokenizer_->token_texts()[id], id, vocabulary_ - 1));
  }
  bool is_unused(int64_t id) const { return id >= tokenizer_->vocabulary(); }

  std::shared_ptr<const Tokenizer> tokenizer_;
  int64_t vocabulary_;
};

const RegisterTokenizer padded_reader("padded", [](const nlohmann::ordered_json& json) {
  return padded_tokenizer(read_tokenizer(json.at("tokenizer")),
                          whole_number(json.at("vocabulary")));
});

}  // namespace

std::shared_ptr<const Tokenizer> padded_tokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                                  int64_t vocabulary) {
  const auto own = tokenizer->vocabulary();
  if (own == vocabulary) return tokenizer;
  for (const auto& id : {tokenizer->frame().begin, tokenizer->frame().end})
    if (id && *id >= vocabulary)
      throw DataError(
          fmt::format("the tokenizer puts token {} beside every text, and the model's are 0 to {}",
                      *id, vocabulary - 1));
  if (vocabulary - own > kMostUnused)
    throw DataError(fmt::format(
        "the tokenizer has {} tokens, the vocabulary {}: it is of another model", own, vocabulary));
  return std::make_shared<PaddedTokenizer>(std::move(tokenizer), vocabulary);
}

}  // namespace headlab
