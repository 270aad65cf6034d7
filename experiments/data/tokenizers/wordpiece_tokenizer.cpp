#include "experiments/data/tokenizers/wordpiece_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "core/errors.h"
#include "experiments/data/formats/plain_text.h"
#include "experiments/data/tokenizers/padded_tokenizer.h"
#include "experiments/data/tokenizers/special_tokens.h"
#include "experiments/text/unicode.h"

namespace headlab {
namespace {

constexpr std::string_view kInside = "##";
constexpr size_t kLongestWord = 100;  // code points

// As BERT's makers wrote them down: neither kana nor hangul, and with a gap (2B740-2B81F is
// extension D; of E, which begins at 2B820, 256 are left out).
bool is_ideograph(char32_t c) {
  constexpr std::array<std::pair<char32_t, char32_t>, 8> kBlocks{{{0x4E00, 0x9FFF},
                                                                  {0x3400, 0x4DBF},
                                                                  {0xF900, 0xFAFF},
                                                                  {0x20000, 0x2A6DF},
                                                                  {0x2A700, 0x2B73F},
                                                                  {0x2B740, 0x2B81F},
                                                                  {0x2B920, 0x2CEAF},
                                                                  {0x2F800, 0x2FA1F}}};
  return std::ranges::any_of(
      kBlocks, [&](const auto& block) { return c >= block.first && c <= block.second; });
}

bool is_ascii_mark(char32_t c) {
  return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
         (c >= 123 && c <= 126);
}

bool is_dropped(char32_t c) {
  if (c == U'\t' || c == U'\n' || c == U'\r') return false;
  return c == 0 || c == 0xFFFD || is_control(c);
}

// Controls dropped, white space as spaces, spaces around CJK ideographs; then NFD without marks,
// and lower case.
PlacedChars normalized(const PlacedChars& chars, const WordPieceModel& model) {
  PlacedChars made;
  made.reserve(chars.size());
  for (const auto& c : chars) {
    if (is_dropped(c.value)) continue;
    const bool ideograph = is_ideograph(c.value);
    const PlacedChar space{U' ', c.range};
    if (ideograph) made.push_back(space);
    made.push_back(is_white_space(c.value) ? space : c);
    if (ideograph) made.push_back(space);
  }
  if (model.strip_accents) {
    made = decomposed(made);
    std::erase_if(made, [](const PlacedChar& c) { return is_nonspacing_mark(c.value); });
  }
  return model.lower_case ? lower_case(made) : made;
}

// What spaces separate; each punctuation mark is a word.
std::vector<PlacedChars> bert_words(const PlacedChars& normalized) {
  std::vector<PlacedChars> words;
  bool within = false;
  for (const auto& c : normalized) {
    const bool mark = is_ascii_mark(c.value) || is_punctuation(c.value);
    if (c.value == U' ') {
      within = false;
      continue;
    }
    if (mark || !within) words.emplace_back();
    words.back().push_back(c);
    within = !mark;
  }
  return words;
}

class WordPieceTokenizer : public Tokenizer {
 public:
  explicit WordPieceTokenizer(WordPieceModel model)
      : model_(std::move(model)), specials_(model_.specials) {
    for (size_t id = 0; id < model_.tokens.size(); ++id) {
      const auto& token = model_.tokens[id];
      if (!token.empty() && !ids_.emplace(token, id).second)
        throw DataError(fmt::format("the vocabulary of WordPiece has '{}' twice", token));
      longest_ = std::max(longest_, token.size());
    }
    unknown_ = id_of(model_.unknown, "for unknown words");
    for (const auto& special : model_.specials)
      special_ids_.push_back(id_of(special, "as a special"));
    check_frame();
  }

  int64_t vocabulary() const override { return std::ssize(model_.tokens); }
  std::vector<int64_t> specials() const override { return special_ids_; }
  TextFrame frame() const override { return model_.frame; }

  Encoding encode(std::string_view text, const std::string& name) const override {
    decode_utf8(text, name, [](char32_t) {});  // whole: what is wrong is said with its place
    Encoding encoding;
    int64_t word = 0;
    specials_.for_each_part(text, [&](TextRange range, int64_t special) {
      if (special >= 0) {
        encoding.add(special_ids_[special], range, word++);
        return;
      }
      const auto part = text.substr(range.begin, range.end - range.begin);
      for (const auto& chars :
           bert_words(normalized(placed_chars(part, range.begin, name), model_)))
        add_pieces(chars, word++, encoding);
    });
    return encoding;
  }

  // Before ASCII's white space that is not dropped. It becomes a space, and words end at one
  // whatever stands around it: a space is a starter, so that normal forms change nothing across it,
  // and all else looks at characters alone.
  size_t next_cut(std::string_view text, size_t from) const override {
    return first_place(text, from, [&](size_t at) {
      const char c = text[at];
      return (c == ' ' || c == '\n' || c == '\t' || c == '\r') && !specials_.stand_across(text, at);
    });
  }

  // A space between words, none before marks that end one.
  std::string bytes(int64_t id, std::optional<int64_t> before) const override {
    const auto& token = model_.tokens[checked_id(id)];
    if (!before || token.empty()) return token;
    if (token.starts_with(kInside)) return token.substr(kInside.size());
    const bool ends = token == "." || token == "," || token == "!" || token == "?";
    return (ends ? "" : " ") + token;
  }

  std::string decode(const std::vector<int64_t>& ids) const override {
    std::vector<int64_t> tokens;
    for (int64_t id : ids)
      if (!model_.tokens[checked_id(id)].empty()) tokens.push_back(id);
    return Tokenizer::decode(tokens);
  }

  std::vector<std::string> token_texts() const override {
    auto texts = model_.tokens;
    for (size_t id = 0; id < texts.size(); ++id)
      if (texts[id].empty()) texts[id] = text_of_no_token(static_cast<int64_t>(id));
    return texts;
  }

  nlohmann::ordered_json json() const override {
    nlohmann::ordered_json json{{"kind", "wordpiece"},
                                {"lower_case", model_.lower_case},
                                {"strip_accents", model_.strip_accents},
                                {"unknown", model_.unknown},
                                {"specials", model_.specials}};
    model_.frame.write(json);
    json["tokens"] = model_.tokens;
    return json;
  }

 private:
  int64_t id_of(const std::string& token, const char* what) const {
    const auto found = ids_.find(token);
    if (found == ids_.end())
      throw DataError(fmt::format("the vocabulary of WordPiece has no '{}', {}", token, what));
    return found->second;
  }
  void check_frame() const {
    for (const auto& id : {model_.frame.begin, model_.frame.end})
      if (id) checked_id(*id);
  }

  // The longest piece that the bytes from `begin` on have, where its id is and where it ends.
  struct Piece {
    int64_t id = -1;
    size_t end = 0;
  };
  Piece longest_piece(const std::string& word, size_t begin, bool inside) const {
    const size_t most = longest_ - std::min(longest_, inside ? kInside.size() : 0);
    std::string piece = std::string(inside ? kInside : "") + word.substr(begin, most);
    for (size_t end = std::min(word.size(), begin + most); end > begin; --end, piece.pop_back())
      if (const auto found = ids_.find(piece); found != ids_.end()) return {found->second, end};
    return {};
  }

  // All of a word, or the unknown.
  void add_pieces(const PlacedChars& chars, int64_t number, Encoding& encoding) const {
    const TextRange whole{chars.front().range.begin, chars.back().range.end};
    std::string word;
    std::vector<size_t> char_at;  // of each byte
    for (size_t n = 0; n < chars.size() && chars.size() <= kLongestWord; ++n) {
      word += encode_utf8(chars[n].value);
      char_at.resize(word.size(), n);
    }
    Encoding made;
    for (size_t at = 0; at < word.size();) {
      const auto [id, end] = longest_piece(word, at, at > 0);
      if (id < 0) {
        made = {};
        break;
      }
      made.add(id, {chars[char_at[at]].range.begin, chars[char_at[end - 1]].range.end}, number);
      at = end;
    }
    if (made.ids.empty()) made.add(unknown_, whole, number);
    encoding.append(made);
  }

  WordPieceModel model_;
  SpecialTokens specials_;
  std::vector<int64_t> special_ids_;
  std::unordered_map<std::string, int64_t> ids_;
  size_t longest_ = 0;  // bytes
  int64_t unknown_ = 0;
};

const RegisterTokenizer wordpiece_reader("wordpiece", [](const nlohmann::ordered_json& json) {
  return wordpiece_tokenizer({.tokens = json.at("tokens").get<std::vector<std::string>>(),
                              .specials = json.at("specials").get<std::vector<std::string>>(),
                              .unknown = json.at("unknown").get<std::string>(),
                              .lower_case = json.at("lower_case").get<bool>(),
                              .strip_accents = json.at("strip_accents").get<bool>(),
                              .frame = TextFrame::read(json)});
});

}  // namespace

std::shared_ptr<const Tokenizer> wordpiece_tokenizer(WordPieceModel model) {
  return std::make_shared<WordPieceTokenizer>(std::move(model));
}

WordPieceModel read_wordpiece(std::string_view vocabulary, const std::string& name) {
  decode_utf8(vocabulary, name, [](char32_t) {});
  WordPieceModel model;
  each_line(plain_text(vocabulary, name),
            [&](std::string_view line, int64_t) { model.tokens.emplace_back(line); });
  const auto id = [&](const std::string& token) -> std::optional<int64_t> {
    const auto found = std::ranges::find(model.tokens, token);
    if (found == model.tokens.end()) return std::nullopt;
    return found - model.tokens.begin();
  };
  for (const char* special : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})
    if (id(special)) model.specials.emplace_back(special);
  model.frame = {id("[CLS]"), id("[SEP]")};
  return model;
}

}  // namespace headlab
