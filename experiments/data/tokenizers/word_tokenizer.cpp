#include "experiments/data/tokenizers/word_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "core/errors.h"
#include "experiments/data/formats/plain_text.h"
#include "experiments/files/json_text.h"

namespace headlab {
namespace {

constexpr std::string_view kUnknownInText = "<unk>";  // as WikiText's makers wrote rare words

// Calls `take` with the bytes of one word after the other, those of every end of a line included.
template <class Take>
void split_words(std::string_view text, Take take) {
  for (size_t at = 0; at < text.size();) {
    if (text[at] == ' ') {
      ++at;
      continue;
    }
    size_t end = at + line_end_at(text, at);
    if (end == at) {
      end = std::min(text.find_first_of(" \n", at), text.size());
      if (line_end_at(text, end - 1) == 2) --end;
    }
    take(TextRange{at, end});
    at = end;
  }
}

class WordTokenizer : public Tokenizer {
 public:
  WordTokenizer(WordRules rules, std::vector<std::string> words)
      : rules_(std::move(rules)), words_(std::move(words)) {
    const auto specials = std::ssize(rules_.specials);
    if (rules_.unknown < 0 || rules_.unknown >= specials)
      throw DataError(
          fmt::format("a vocabulary of words needs a special for those that are "
                      "unknown: {} is none of {} specials",
                      rules_.unknown, specials));
    for (int64_t id = 0; id < vocabulary(); ++id)
      if (!id_of_.emplace(text_of(id), id).second)
        throw DataError(fmt::format("the vocabulary of words has '{}' twice", text_of(id)));
    id_of_.emplace(kUnknownInText, rules_.unknown);
  }

  int64_t vocabulary() const override { return std::ssize(rules_.specials) + std::ssize(words_); }

  Encoding encode(std::string_view text, const std::string&) const override {
    Encoding encoding;
    int64_t word = 0;
    split_words(text, [&](const TextRange& range) {
      const auto bytes = text.substr(range.begin, range.end - range.begin);
      const bool ends = line_end_at(bytes, 0) > 0;
      if (ends && rules_.line_end.empty()) return;
      const auto found = id_of_.find(ends ? std::string_view(rules_.line_end) : bytes);
      encoding.ids.push_back(found == id_of_.end() ? rules_.unknown : found->second);
      encoding.ranges.push_back(range);
      encoding.words.push_back(ends ? -1 : word++);
    });
    return encoding;
  }

  // Before a space or behind the end of a line: no word goes on there.
  size_t next_cut(std::string_view text, size_t from) const override {
    return first_place(text, from,
                       [&](size_t at) { return text[at] == ' ' || text[at - 1] == '\n'; });
  }

  // A space between words; an end of a line is one again, without spaces around it.
  std::string bytes(int64_t id, std::optional<int64_t> before) const override {
    if (ends_line(checked_id(id))) return "\n";
    return (before && !ends_line(*before) ? " " : "") + text_of(id);
  }

  std::vector<std::string> token_texts() const override {
    auto texts = rules_.specials;
    texts.insert(texts.end(), words_.begin(), words_.end());
    return texts;
  }
  std::vector<int64_t> specials() const override {
    std::vector<int64_t> ids(rules_.specials.size());
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }

  nlohmann::ordered_json json() const override {
    return {{"kind", "words"},
            {"specials", rules_.specials},
            {"unknown", rules_.unknown},
            {"line_end", rules_.line_end},
            {"words", words_}};
  }

 private:
  const std::string& text_of(int64_t id) const {
    const auto specials = std::ssize(rules_.specials);
    return id < specials ? rules_.specials[id] : words_[id - specials];
  }
  bool ends_line(int64_t id) const {
    return !rules_.line_end.empty() && text_of(id) == rules_.line_end;
  }

  WordRules rules_;
  std::vector<std::string> words_;
  std::unordered_map<std::string_view, int64_t> id_of_;  // views of the two above
};

const RegisterTokenizer word_reader("words", [](const nlohmann::ordered_json& json) {
  WordRules rules{json.at("specials").get<std::vector<std::string>>(),
                  whole_number(json.at("unknown")), json.at("line_end").get<std::string>()};
  return word_tokenizer(std::move(rules), json.at("words").get<std::vector<std::string>>());
});

}  // namespace

std::vector<std::string> frequent_words(const std::vector<std::string_view>& texts,
                                        const WordRules& rules, int64_t min_count) {
  std::unordered_map<std::string_view, int64_t> counts;
  for (const auto text : texts)
    split_words(text, [&](const TextRange& range) {
      const auto bytes = text.substr(range.begin, range.end - range.begin);
      if (line_end_at(bytes, 0) == 0)
        ++counts[bytes];
      else if (!rules.line_end.empty())
        ++counts[rules.line_end];
    });
  counts.erase(kUnknownInText);
  for (const auto& special : rules.specials) counts.erase(special);
  std::vector<std::pair<int64_t, std::string_view>> known;
  for (const auto& [word, count] : counts)
    if (count >= min_count) known.emplace_back(-count, word);
  std::sort(known.begin(), known.end());  // string_view compares bytes as unsigned
  std::vector<std::string> words;
  for (const auto& [count, word] : known) words.emplace_back(word);
  return words;
}

std::shared_ptr<const Tokenizer> word_tokenizer(WordRules rules, std::vector<std::string> words) {
  return std::make_shared<WordTokenizer>(std::move(rules), std::move(words));
}

}  // namespace headlab
