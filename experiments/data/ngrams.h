// Unigram and bigram models of tokens, counted: what a language model is to be better than. No
// torch in here.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <vector>

namespace headlab {

// How often pairs of tokens occur: a hash map with open addressing, at most half full.
class PairCounts {
 public:
  explicit PairCounts(int64_t vocabulary) : vocabulary_(vocabulary), slots_(1 << 12) {}

  void add(int64_t before, int64_t token);
  int64_t count(int64_t before, int64_t token) const { return slots_[place(before, token)].count; }
  int64_t different() const { return used_; }
  void each(const std::function<void(int64_t before, int64_t token, int64_t count)>& visit) const;

 private:
  struct Slot {
    uint64_t key = 0;  // 0: free
    uint32_t count = 0;
  };

  uint64_t key(int64_t before, int64_t token) const {
    return static_cast<uint64_t>(before * vocabulary_ + token) + 1;
  }
  size_t place(int64_t before, int64_t token) const { return place(key(before, token)); }
  size_t place(uint64_t key) const;  // where it is, or is to be put
  void grow();

  int64_t vocabulary_, used_ = 0;
  std::vector<Slot> slots_;
};

// Counts of a text. They end where they would take too long or too much memory: the model is then
// of the text's beginning.
class NgramCounts {
 public:
  // `pairs`: what stands before a token counts, too.
  NgramCounts(int64_t vocabulary, bool pairs)
      : tokens_(vocabulary), befores_(vocabulary), pairs_(vocabulary), has_pairs_(pairs) {}

  void add(int64_t before, int64_t token) {
    ++total_, ++tokens_[token];
    if (has_pairs_) ++befores_[before], pairs_.add(before, token);
  }
  bool full() const { return total_ >= kMostTokens || pairs_.different() >= kMostPairs; }
  bool has_pairs() const { return has_pairs_; }
  int64_t total() const { return total_; }
  int64_t count(int64_t token) const { return tokens_[token]; }
  int64_t count_before(int64_t before) const { return befores_[before]; }
  const PairCounts& pairs() const { return pairs_; }
  int64_t vocabulary() const { return std::ssize(tokens_); }

 private:
  static constexpr int64_t kMostTokens = int64_t{1} << 27;  // seconds
  static constexpr int64_t kMostPairs = int64_t{1} << 23;   // 32 bytes each

  int64_t total_ = 0;
  std::vector<int64_t> tokens_, befores_;
  PairCounts pairs_;
  bool has_pairs_;
};

// N tokens, of which A may occur:
//   p(w)     = (n(w) + 1) / (N + A)
//   p(w | v) = weight n(v w) / n(v) + (1 - weight) p(w)    behind a v that was seen, else p(w)
// The weight is the one with which the counted text, each token left out in turn, is likeliest
// (Jelinek and Mercer 1980, with one token held out at a time).
class NgramModel {
 public:
  NgramModel(NgramCounts counts, int64_t answers);

  double p(int64_t token) const { return smoothed(counts_.count(token) + 1, 0); }
  double p(int64_t before, int64_t token) const;
  bool has_pairs() const { return counts_.has_pairs(); }
  double weight() const { return weight_; }
  int64_t likeliest() const { return likeliest_; }
  int64_t likeliest(int64_t before) const { return likeliest_after_[before]; }
  int64_t counted() const { return counts_.total(); }

 private:
  // Of a token that was seen `count` - 1 times, with `fewer` tokens than there are.
  double smoothed(int64_t count, int64_t fewer) const {
    return static_cast<double>(count) / static_cast<double>(counts_.total() - fewer + answers_);
  }
  double best_weight() const;
  std::vector<int64_t> likeliest_behind_each() const;

  NgramCounts counts_;
  int64_t answers_;
  double weight_ = 0;
  int64_t likeliest_;
  std::vector<int64_t> likeliest_after_;
};

}  // namespace headlab
