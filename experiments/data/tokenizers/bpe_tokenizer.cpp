#include "experiments/data/tokenizers/bpe_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>

#include "core/errors.h"
#include "experiments/data/formats/plain_text.h"
#include "experiments/data/tokenizers/bpe_pieces.h"
#include "experiments/data/tokenizers/padded_tokenizer.h"
#include "experiments/files/json_text.h"
#include "experiments/files/mapped_file.h"

namespace headlab {
namespace {

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeModel model) : model_(std::move(model)), specials_(model_.specials) {
    for (size_t id = 0; id < model_.tokens.size(); ++id)
      if (!model_.tokens[id].empty() && !ids_.emplace(model_.tokens[id], id).second)
        throw DataError(fmt::format("the BPE vocabulary has '{}' twice", model_.tokens[id]));
    std::vector<bool> special(model_.tokens.size());
    for (const auto& text : model_.specials) {
      special_ids_.push_back(id_of(text, "as a special"));
      special[special_ids_.back()] = true;
    }
    for (const auto& symbol : bpe_symbols())
      byte_ids_.push_back(
          model_.drops_unknown_bytes && !ids_.contains(symbol) ? -1 : id_of(symbol, "for a byte"));
    for (size_t id = 0; id < model_.tokens.size(); ++id)
      bytes_.push_back(bytes_of(id, special[id]));
    for (size_t id = 0; model_.ignore_merges && id < bytes_.size(); ++id)
      if (!special[id] && bpe_bytes(model_.tokens[id])) whole_pieces_.emplace(bytes_[id], id);
    for (const auto& [left, right] : model_.merges) {
      const Pair pair{id_of(left, "of a merge"), id_of(right, "of a merge")};
      merges_.emplace(pair, Merge{std::ssize(merges_), id_of(left + right, "made by a merge")});
    }
    for (const auto& id : {model_.frame.begin, model_.frame.end})
      if (id) checked_id(*id);
  }

  int64_t vocabulary() const override { return std::ssize(model_.tokens); }
  std::vector<int64_t> specials() const override { return special_ids_; }
  TextFrame frame() const override { return model_.frame; }

  Encoding encode(std::string_view text, const std::string& name) const override {
    Encoding encoding;
    int64_t word = -1;
    bool within = false;  // a word, which no white space has ended yet
    for_each_bpe_piece(text, name, specials_, model_.pattern, [&](const BpePiece& piece) {
      if (piece.special >= 0) {
        encoding.add(special_ids_[piece.special], piece.range, -1);
        within = false;
        return;
      }
      if (!piece.white_space && (!within || piece.begins_with_space)) ++word;
      within = !piece.white_space;
      for (const auto& [id, bytes] : tokens_of(piece.bytes)) {
        const bool space = piece.white_space || is_ascii_space(bytes_[id]);
        encoding.add(id, place_of(bytes, piece), space ? -1 : word);
      }
    });
    return encoding;
  }

  size_t next_cut(std::string_view text, size_t from) const override {
    return first_place(text, from, [&](size_t at) {
      return always_cut(text, at, model_.pattern) && !specials_.stand_across(text, at);
    });
  }

  std::string bytes(int64_t id, std::optional<int64_t>) const override {
    return bytes_[checked_id(id)];
  }
  std::string decode(const std::vector<int64_t>& ids) const override {
    return replace_invalid_utf8(Tokenizer::decode(ids));
  }

  // Bytes that are part of a character by their numbers.
  std::vector<std::string> token_texts() const override {
    std::vector<std::string> texts;
    for (const auto& bytes : bytes_) {
      auto& text = texts.emplace_back();
      if (bytes.empty()) text = text_of_no_token(std::ssize(texts) - 1);
      for (size_t at = 0; at < bytes.size();) {
        const size_t length = utf8_length(bytes, at);
        text += length > 0 ? bytes.substr(at, length)
                           : fmt::format("\\x{:02x}", static_cast<unsigned char>(bytes[at]));
        at += std::max<size_t>(length, 1);
      }
    }
    return texts;
  }
  std::vector<uint8_t> token_classes() const override {
    auto texts = token_texts();
    for (auto& text : texts)
      if (text.starts_with(' ')) text.erase(0, 1);
    return classes_of(texts);
  }

  nlohmann::ordered_json json() const override {
    auto merges = nlohmann::ordered_json::array();
    for (const auto& [left, right] : model_.merges)
      merges.push_back(fmt::format("{} {}", left, right));
    nlohmann::ordered_json json{{"kind", "bpe"}};  // what is as GPT-2 has it is not said
    if (model_.pattern != BpePattern::kGpt2) json["pattern"] = name_of(model_.pattern);
    if (model_.ignore_merges) json["ignore_merges"] = true;
    if (model_.drops_unknown_bytes) json["drops_unknown_bytes"] = true;
    model_.frame.write(json);
    json["specials"] = model_.specials;
    json["tokens"] = model_.tokens;
    json["merges"] = merges;
    return json;
  }

 private:
  using Pair = std::pair<int64_t, int64_t>;
  struct Merge {
    int64_t rank, id;
  };
  struct PairHash {
    size_t operator()(const Pair& pair) const {
      return std::hash<int64_t>()(pair.first << 32 ^ pair.second);
    }
  };
  struct Join {  // of two tokens of a piece
    int64_t rank;
    size_t left, right;
    int64_t id;
    bool operator>(const Join& other) const {
      return std::pair(rank, left) > std::pair(other.rank, other.left);
    }
  };

  int64_t id_of(const std::string& token, const char* what) const {
    const auto found = ids_.find(token);
    if (found == ids_.end())
      throw DataError(fmt::format("the BPE vocabulary has no '{}', {}", token, what));
    return found->second;
  }

  // What is not made of the symbols of bytes stands for itself.
  std::string bytes_of(int64_t id, bool special) const {
    const auto& token = model_.tokens[id];
    return special ? token : bpe_bytes(token).value_or(token);
  }

  static bool is_ascii_space(std::string_view bytes) {
    return bytes.find_first_not_of(" \t\n\v\f\r") == bytes.npos;
  }

  // Of bytes of a piece, where in the text they are.
  static TextRange place_of(const TextRange& bytes, const BpePiece& piece) {
    if (piece.places.empty())
      return {piece.range.begin + bytes.begin, piece.range.begin + bytes.end};
    return {piece.places[bytes.begin].begin, piece.places[bytes.end - 1].end};
  }

  struct Token {
    int64_t id;
    TextRange bytes;  // of the piece
  };

  std::vector<Token> tokens_of(std::string_view piece) const {
    if (model_.ignore_merges)
      if (const auto found = whole_pieces_.find(piece); found != whole_pieces_.end())
        return {{found->second, {0, piece.size()}}};
    std::vector<Token> tokens;
    for (size_t at = 0; at < piece.size(); ++at)
      if (const auto id = byte_ids_[static_cast<unsigned char>(piece[at])]; id >= 0)
        tokens.push_back({id, {at, at + 1}});
    join(tokens);
    return tokens;
  }

  // The join of least rank first, of several the leftmost.
  void join(std::vector<Token>& tokens) const {
    constexpr auto kNone = std::numeric_limits<size_t>::max();
    std::vector<size_t> before(tokens.size()), behind(tokens.size());  // the tokens beside each
    for (size_t at = 0; at < tokens.size(); ++at) before[at] = at - 1, behind[at] = at + 1;
    std::priority_queue<Join, std::vector<Join>, std::greater<>> joins;
    const auto offer = [&](size_t left, size_t right) {
      if (left == kNone || right >= tokens.size()) return;
      const auto found = merges_.find({tokens[left].id, tokens[right].id});
      if (found != merges_.end()) joins.push({found->second.rank, left, right, found->second.id});
    };
    for (size_t at = 0; at < tokens.size(); ++at) offer(at, at + 1);
    for (; !joins.empty(); joins.pop()) {
      const auto [rank, left, right, id] = joins.top();
      if (tokens[left].id < 0 || behind[left] != right) continue;
      const auto found = merges_.find({tokens[left].id, tokens[right].id});
      if (found == merges_.end() || found->second.rank != rank) continue;  // one was joined since
      tokens[left] = {id, {tokens[left].bytes.begin, tokens[right].bytes.end}};
      tokens[right].id = -1;
      behind[left] = behind[right];
      if (behind[left] < tokens.size()) before[behind[left]] = left;
      offer(before[left], left), offer(left, behind[left]);
    }
    std::erase_if(tokens, [](const Token& token) { return token.id < 0; });
  }

  BpeModel model_;
  SpecialTokens specials_;
  std::unordered_map<std::string, int64_t> ids_;
  std::vector<int64_t> special_ids_, byte_ids_;  // -1: the byte has no token
  std::vector<std::string> bytes_;               // of every token
  std::unordered_map<std::string_view, int64_t>
      whole_pieces_;  // with ignore_merges; views of these
  std::unordered_map<Pair, Merge, PairHash> merges_;
};

const RegisterTokenizer bpe_reader("bpe", [](const nlohmann::ordered_json& json) {
  const auto pattern = json.value("pattern", name_of(BpePattern::kGpt2));
  const auto known = bpe_pattern(pattern);
  if (!known) throw DataError(fmt::format("no pattern of BPE is called '{}' here", pattern));
  BpeModel model{.tokens = json.at("tokens").get<std::vector<std::string>>(),
                 .merges = {},
                 .specials = json.at("specials").get<std::vector<std::string>>(),
                 .pattern = *known,
                 .ignore_merges = json.value("ignore_merges", false),
                 .drops_unknown_bytes = json.value("drops_unknown_bytes", false),
                 .frame = TextFrame::read(json)};
  for (const auto& merge : json.at("merges"))
    model.merges.push_back(bpe_merge(merge.get<std::string>(), "merges"));
  return bpe_tokenizer(std::move(model));
});

}  // namespace

std::shared_ptr<const Tokenizer> bpe_tokenizer(BpeModel model) {
  return std::make_shared<BpeTokenizer>(std::move(model));
}

std::pair<std::string, std::string> bpe_merge(const std::string& text, const std::string& place) {
  const auto space = text.find(' ');
  if (space == 0 || space == text.npos || text.find(' ', space + 1) != text.npos ||
      space + 1 == text.size())
    throw DataError(fmt::format("{}: '{}' is no merge of two tokens", place, text));
  return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<std::pair<std::string, std::string>> read_merges(const std::filesystem::path& file) {
  std::vector<std::pair<std::string, std::string>> merges;
  const MappedFile bytes(file);
  each_line(plain_text(bytes.text(), file.string()), [&](std::string_view line, int64_t number) {
    if (line.empty() || (number == 1 && line.starts_with("#version"))) return;
    merges.push_back(bpe_merge(std::string(line), fmt::format("{}:{}", file.string(), number)));
  });
  return merges;
}

}  // namespace headlab
