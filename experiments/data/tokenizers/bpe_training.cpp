// Counts of pairs are kept while tokens are joined, so that a merge costs what it changes.
#include <algorithm>
#include <queue>
#include <unordered_map>
#include <utility>

#include "experiments/data/tokenizers/bpe_pieces.h"
#include "experiments/data/tokenizers/bpe_tokenizer.h"

namespace headlab {
namespace {

using TokenId = int32_t;

uint64_t pair_key(TokenId left, TokenId right) {  // in the order of (left, right)
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

class BpeTraining {
 public:
  BpeTraining(const std::vector<std::string_view>& texts, std::vector<std::string> specials) {
    model_.specials = std::move(specials);
    model_.tokens = model_.specials;
    std::vector<TokenId> byte_ids(256);
    // By code point of the symbols: those that are their own byte are the lesser.
    for (const bool own : {true, false})
      for (int byte = 0; byte < 256; ++byte)
        if ((bpe_symbols()[byte] < "\u0100") == own) byte_ids[byte] = add(bpe_symbols()[byte]);
    std::unordered_map<std::string_view, int64_t> counts;
    const SpecialTokens given(model_.specials);
    for (const auto text : texts)
      for_each_bpe_piece(text, "text", given, model_.pattern, [&](const BpePiece& piece) {
        if (piece.special < 0)
          ++counts[text.substr(piece.range.begin, piece.range.end - piece.range.begin)];
      });
    for (const auto& [bytes, count] : counts) {
      Piece piece{.ids = {}, .count = count};
      for (char byte : bytes) piece.ids.push_back(byte_ids[static_cast<unsigned char>(byte)]);
      pieces_.push_back(std::move(piece));
    }
  }

  BpeModel train(size_t vocabulary) {
    std::vector<uint64_t> all;
    for (size_t n = 0; n < pieces_.size(); ++n) add_pairs(n, -1, all);
    offer(all);
    while (model_.tokens.size() < vocabulary && !offers_.empty()) {
      const Offer best = offers_.top();
      offers_.pop();
      auto& pair = pairs_[best.key];
      // Its pairs have become fewer since it was offered: what is left of them comes later.
      if (pair.count < best.count) {
        if (pair.count > 1) offers_.push({pair.count, best.key});
        continue;
      }
      join(best.key, std::exchange(pair.pieces, {}));
    }
    return std::move(model_);
  }

 private:
  struct Piece {
    std::vector<TokenId> ids;
    int64_t count;
  };
  struct PairCount {
    int64_t count = 0;
    std::vector<size_t> pieces = {};  // that have it, or had it once
  };
  struct Offer {
    int64_t count;
    uint64_t key;
    bool operator<(const Offer& other) const {  // the least is joined last
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  // The id of a token; two pairs may make the same one.
  TokenId add(const std::string& token) {
    const auto [place, fresh] = ids_.emplace(token, model_.tokens.size());
    if (fresh) model_.tokens.push_back(token);
    return place->second;
  }

  // Adds a piece's pairs, of those with `made` alone (-1: of all) also that they are there now, and
  // may be offered.
  void add_pairs(size_t n, TokenId made, std::vector<uint64_t>& changed) {
    const auto& [ids, count] = pieces_[n];
    for (size_t at = 0; at + 1 < ids.size(); ++at) {
      const auto key = pair_key(ids[at], ids[at + 1]);
      auto& pair = pairs_[key];
      pair.count += count;
      if (made >= 0 && ids[at] != made && ids[at + 1] != made) continue;
      if (pair.pieces.empty() || pair.pieces.back() != n) pair.pieces.push_back(n);
      changed.push_back(key);
    }
  }
  void remove_pairs(size_t n) {
    const auto& [ids, count] = pieces_[n];
    for (size_t at = 0; at + 1 < ids.size(); ++at)
      pairs_[pair_key(ids[at], ids[at + 1])].count -= count;
  }

  void offer(std::vector<uint64_t>& keys) {
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    for (auto key : keys)
      if (const auto count = pairs_[key].count; count > 1) offers_.push({count, key});
  }

  void join(uint64_t key, const std::vector<size_t>& pieces) {
    const auto left = static_cast<TokenId>(key >> 32), right = static_cast<TokenId>(key);
    const auto& merge = model_.merges.emplace_back(model_.tokens[left], model_.tokens[right]);
    const TokenId made = add(merge.first + merge.second);
    std::vector<uint64_t> changed;
    for (size_t n : pieces) join_in(n, left, right, made, changed);
    offer(changed);
  }

  // In one piece, from left to right; what else it has stays as frequent as it was.
  void join_in(size_t n, TokenId left, TokenId right, TokenId made,
               std::vector<uint64_t>& changed) {
    remove_pairs(n);
    auto& ids = pieces_[n].ids;
    size_t end = 0;
    for (size_t at = 0; at < ids.size(); ++at) {
      const bool here = at + 1 < ids.size() && ids[at] == left && ids[at + 1] == right;
      ids[end++] = here ? made : ids[at];
      if (here) ++at;
    }
    ids.resize(end);
    add_pairs(n, made, changed);
  }

  BpeModel model_;
  std::unordered_map<std::string, TokenId> ids_;
  std::vector<Piece> pieces_;
  std::unordered_map<uint64_t, PairCount> pairs_;
  std::priority_queue<Offer> offers_;
};

}  // namespace

BpeModel train_bpe(const std::vector<std::string_view>& texts, std::vector<std::string> specials,
                   int64_t vocabulary) {
  return BpeTraining(texts, std::move(specials)).train(static_cast<size_t>(vocabulary));
}

}  // namespace headlab
