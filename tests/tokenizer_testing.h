// What the tests of tokenizers share: texts and what the tokenizers library makes of them.
#pragma once

#include <nlohmann/json.hpp>

#include "experiments/data/tokenizers/bpe_tokenizer.h"
#include "experiments/files/json_text.h"
#include "experiments/files/mapped_file.h"
#include "tests/data_testing.h"

namespace headlab::testing {

// The library counts code points; a token that is part of one has all of it.
inline std::vector<std::pair<int64_t, int64_t>> code_points_of(const std::vector<TextRange>& ranges,
                                                               std::string_view text) {
  const auto begins = [&](size_t at) { return at < text.size() && (text[at] & 0xC0) != 0x80; };
  std::vector<int64_t> before(text.size() + 1);  // code points that begin before a byte
  for (size_t at = 0; at < text.size(); ++at) before[at + 1] = before[at] + (begins(at) ? 1 : 0);
  std::vector<std::pair<int64_t, int64_t>> found;
  for (const auto& [begin, end] : ranges) {
    const bool whole = begin == end || begins(begin);
    found.emplace_back(before[begin] - (whole ? 0 : 1), before[end]);
  }
  return found;
}

// The files of GPT-2: vocab.json, {"token": id}, and merges.txt.
inline BpeModel read_bpe(const std::filesystem::path& vocabulary,
                         const std::filesystem::path& merges, std::vector<std::string> specials) {
  const auto ids = parse_json(MappedFile(vocabulary).text()).value_or(nlohmann::json());
  std::vector<std::string> tokens(ids.size());
  for (const auto& [token, id] : ids.items()) tokens.at(id) = token;
  return {
      .tokens = std::move(tokens), .merges = read_merges(merges), .specials = std::move(specials)};
}

inline std::vector<std::string> texts_of(const Tokenizer& tokenizer,
                                         const std::vector<int64_t>& ids) {
  const auto all = tokenizer.token_texts();
  std::vector<std::string> texts;
  for (int64_t id : ids) texts.push_back(all.at(id));
  return texts;
}

}  // namespace headlab::testing
