// tokenizer.json, as the tokenizers library writes it.
#pragma once

#include "experiments/data/tokenizers/tokenizer.h"
#include "experiments/files/json_place.h"

namespace headlab {

// How `truncation` and `padding` would cut texts and fill them up is left aside. DataError for what
// is damaged, NotKnownHere for what no tokenizer here does.
std::shared_ptr<const Tokenizer> read_tokenizer_json(const JsonPlace& file);

// The same of a tokenizer. NotKnownHere for a kind that has no such file.
nlohmann::json tokenizer_json(const Tokenizer& tokenizer);

// Tokens by id, "" where an id has none, and those of them that are cut out verbatim.
struct TokenTable {
  std::vector<std::string> tokens, specials;

  std::optional<int64_t> id(const std::string& token) const;
};
// Of {"token": id}, and of tokens that were added, in this order. They have the ids that the
// tokenizers library gives them, whatever their file says: that of the vocabulary, else the next
// behind all. DataError for what is no id; NotKnownHere where two tokens have one.
TokenTable token_table(const JsonPlace& vocabulary, const std::vector<std::string>& added);

// The patterns of BPE that tokenizer.json spells out.
struct WrittenPattern {
  const char* name;  // of the BpePattern
  const char* regex;
};
inline constexpr WrittenPattern kWrittenPatterns[] = {
    {"gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {"llama3",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
// Characters, one by one.
inline constexpr const char* kEveryCharacter = R"([\s\S])";

}  // namespace headlab
