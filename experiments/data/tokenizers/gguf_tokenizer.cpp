// What llama.cpp calls the settings and the patterns: gguf-py's constants.py, llama-vocab.cpp.
#include <fmt/format.h>

#include <array>

#include "experiments/data/tokenizers/bpe_tokenizer.h"
#include "experiments/data/tokenizers/tokenizer_files.h"
#include "experiments/files/json_place.h"

namespace headlab {
namespace {

using Texts = std::vector<std::string>;

struct PatternName {
  std::string_view theirs;
  BpePattern pattern;
};
constexpr std::array kPatterns{PatternName{"gpt-2", BpePattern::kGpt2},
                               PatternName{"smollm", BpePattern::kSmollm2},
                               PatternName{"llama-bpe", BpePattern::kLlama3},
                               PatternName{"llama3", BpePattern::kLlama3},
                               PatternName{"llama-v3", BpePattern::kLlama3},
                               PatternName{"qwen2", BpePattern::kQwen2},
                               PatternName{"deepseek-r1-qwen", BpePattern::kQwen2}};

constexpr double kControl = 3, kUserDefined = 4;

class GgufVocabulary {
 public:
  GgufVocabulary(const GgufFile& file, std::string name) : file_(file), name_(std::move(name)) {}

  BpeModel model() const {
    const auto kind = text("tokenizer.ggml.model");
    if (kind != "gpt2") unknown("tokenizer.ggml.model", kind, "only gpt2, which is byte-level BPE");
    const auto pre = text("tokenizer.ggml.pre");
    const auto pattern = std::ranges::find(kPatterns, pre, &PatternName::theirs);
    if (pattern == kPatterns.end())
      unknown("tokenizer.ggml.pre", pre, "only gpt-2, smollm, llama-bpe and qwen2");
    BpeModel made{.tokens = texts("tokenizer.ggml.tokens"),
                  .merges = {},
                  .pattern = pattern->pattern,
                  .ignore_merges = pattern->pattern == BpePattern::kLlama3};
    for (const auto& merge : texts("tokenizer.ggml.merges"))
      made.merges.push_back(bpe_merge(merge, name_ + ": tokenizer.ggml.merges"));
    made.specials = specials(made.tokens);
    made.drops_unknown_bytes = !have_all_symbols(made.tokens);
    if (is("tokenizer.ggml.add_bos_token", made.ignore_merges))
      made.frame.begin = id("tokenizer.ggml.bos_token_id");
    if (is("tokenizer.ggml.add_eos_token", false))
      made.frame.end = id("tokenizer.ggml.eos_token_id");
    return made;
  }

 private:
  [[noreturn]] void unknown(const std::string& key, const std::string& value,
                            const char* only) const {
    throw NotKnownHere(fmt::format("{}: {}: {} is not known here, {}", name_, key,
                                   value.empty() ? "nothing" : value, only));
  }
  // Null where it is missing.
  template <class T>
  const T* find(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) return nullptr;
    const auto* value = std::get_if<T>(&found->second);
    if (!value) throw DataError(fmt::format("{}: {} is of another type", name_, key));
    return value;
  }
  std::string text(const std::string& key) const {
    const auto* found = find<std::string_view>(key);
    return found ? std::string(*found) : "";
  }
  bool is(const std::string& key, bool otherwise) const {
    const auto* found = find<bool>(key);
    return found ? *found : otherwise;
  }
  int64_t id(const std::string& key) const {
    const auto* found = find<int64_t>(key);
    if (!found) throw DataError(fmt::format("{}: {} is missing", name_, key));
    return *found;
  }
  Texts texts(const std::string& key) const {
    const auto* found = find<std::vector<std::string_view>>(key);
    if (!found) throw DataError(fmt::format("{}: {} is missing", name_, key));
    for (const auto& one : *found) decode_utf8(one, name_ + ": " + key, [](char32_t) {});
    return {found->begin(), found->end()};
  }
  Texts specials(const Texts& tokens) const {
    const auto* types = find<GgufNumbers>("tokenizer.ggml.token_type");
    if (!types) return {};
    if (types->size() != tokens.size())
      throw DataError(fmt::format("{}: tokenizer.ggml.token_type has {} numbers for {} tokens",
                                  name_, types->size(), tokens.size()));
    Texts special;
    for (size_t n = 0; n < tokens.size(); ++n)
      if ((*types)[n] == kControl || (*types)[n] == kUserDefined) special.push_back(tokens[n]);
    return special;
  }

  const GgufFile& file_;
  std::string name_;
};

}  // namespace

FoundTokenizer read_gguf_tokenizer(const GgufFile& file, const std::string& name) {
  FoundTokenizer found;
  try {
    auto model = GgufVocabulary(file, name).model();
    found.tokenizer = made_of(name, [&] { return bpe_tokenizer(std::move(model)); });
  } catch (const NotKnownHere& unknown) {
    found.reason = unknown.what();
  }
  return found;
}

}  // namespace headlab
