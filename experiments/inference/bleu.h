// BLEU (Papineni et al., ACL 2002) of a corpus: tokens separated by spaces, one reference each, as
// sacreBLEU counts with tokenize=none.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace headlab {

// Sums over the sentences, from which the score follows.
struct Bleu {
  static constexpr int kOrders = 4;           // n-grams of 1 .. 4 tokens
  std::array<int64_t, kOrders> matches = {};  // at most as often as the reference has them
  std::array<int64_t, kOrders> totals = {};   // n-grams of the hypotheses
  int64_t hypothesis_tokens = 0, reference_tokens = 0;

  void add(std::string_view hypothesis, std::string_view reference);
  // BP = exp(1 - reference / hypothesis) where the hypotheses are shorter, else 1.
  double brevity_penalty() const;
  // 100 BP (p_1 p_2 p_3 p_4)^(1/4), p_n = matches / totals; 0 where some p_n is 0 or has no
  // n-grams.
  double score() const;
  // The same with the i-th p_n that is 0 as 1 / (2^i totals), unless nothing matches at all.
  double smoothed_score() const;

 private:
  double score_with(bool smoothed) const;
};

}  // namespace headlab
