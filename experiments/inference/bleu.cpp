#include "experiments/inference/bleu.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace headlab {
namespace {

using Tokens = std::vector<std::string_view>;

Tokens split_at_spaces(std::string_view text) {
  Tokens tokens;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) tokens.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return tokens;
}

std::map<Tokens, int64_t> ngrams(const Tokens& tokens, int64_t n) {
  std::map<Tokens, int64_t> counts;
  for (int64_t first = 0; first + n <= std::ssize(tokens); ++first)
    ++counts[Tokens(tokens.begin() + first, tokens.begin() + first + n)];
  return counts;
}

}  // namespace

void Bleu::add(std::string_view hypothesis, std::string_view reference) {
  const auto said = split_at_spaces(hypothesis), wanted = split_at_spaces(reference);
  hypothesis_tokens += std::ssize(said);
  reference_tokens += std::ssize(wanted);
  for (int n = 1; n <= kOrders; ++n) {
    totals[n - 1] += std::max<int64_t>(0, std::ssize(said) - n + 1);
    const auto there = ngrams(wanted, n);
    for (const auto& [ngram, count] : ngrams(said, n))
      if (const auto found = there.find(ngram); found != there.end())
        matches[n - 1] += std::min(count, found->second);
  }
}

double Bleu::brevity_penalty() const {
  if (hypothesis_tokens >= reference_tokens) return 1;
  if (hypothesis_tokens == 0) return 0;
  return std::exp(1 -
                  static_cast<double>(reference_tokens) / static_cast<double>(hypothesis_tokens));
}

double Bleu::score_with(bool smoothed) const {
  if (std::all_of(matches.begin(), matches.end(), [](int64_t m) { return m == 0; })) return 0;
  double sum = 0, half = 1;
  for (int n = 0; n < kOrders; ++n) {
    if (totals[n] == 0 || (matches[n] == 0 && !smoothed)) return 0;
    const auto match = matches[n] > 0 ? static_cast<double>(matches[n]) : half /= 2;
    sum += std::log(match / static_cast<double>(totals[n]));
  }
  return 100 * brevity_penalty() * std::exp(sum / kOrders);
}

double Bleu::score() const { return score_with(/*smoothed=*/false); }
double Bleu::smoothed_score() const { return score_with(/*smoothed=*/true); }

}  // namespace headlab
