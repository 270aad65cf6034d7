// tokenizer.json, as the tokenizers library writes it.
#pragma once

#include "experiments/data/tokenizer.h"
#include "experiments/pretrained/json_place.h"

namespace headlab {

// How `truncation` and `padding` would cut texts and fill them up is left aside. DataError for what
// is damaged, NotKnownHere for what no tokenizer here does.
std::shared_ptr<const Tokenizer> read_tokenizer_json(const JsonPlace& file);

// The same of a tokenizer. NotKnownHere for a kind that has no such file.
nlohmann::json tokenizer_json(const Tokenizer& tokenizer);

// Tokens by id: those of {"token": id}, and those that were added, which are cut out verbatim.
// DataError where ids are not 0, 1, 2, ..., each once.
std::vector<std::string> tokens_of(const JsonPlace& vocabulary, const nlohmann::json& added);
std::vector<std::string> in_order_of_ids(const nlohmann::json& added);

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
