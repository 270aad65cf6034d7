#include "experiments/data/ngrams.h"

#include <algorithm>
#include <utility>

#include "core/attention/random.h"

namespace headlab {

size_t PairCounts::place(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t at = mix_bits(key) & mask;
  while (slots_[at].key != 0 && slots_[at].key != key) at = (at + 1) & mask;
  return at;
}

void PairCounts::add(int64_t before, int64_t token) {
  auto* slot = &slots_[place(before, token)];
  if (slot->key == 0) {
    if (2 * (used_ + 1) > std::ssize(slots_)) {
      grow();
      slot = &slots_[place(before, token)];
    }
    slot->key = key(before, token);
    ++used_;
  }
  ++slot->count;
}

void PairCounts::grow() {
  auto old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
  for (const auto& slot : old)
    if (slot.key != 0) slots_[place(slot.key)] = slot;
}

void PairCounts::each(
    const std::function<void(int64_t before, int64_t token, int64_t count)>& visit) const {
  for (const auto& slot : slots_) {
    if (slot.key == 0) continue;
    const auto key = static_cast<int64_t>(slot.key - 1);
    visit(key / vocabulary_, key % vocabulary_, slot.count);
  }
}

NgramModel::NgramModel(NgramCounts counts, int64_t answers)
    : counts_(std::move(counts)), answers_(answers) {
  likeliest_ = 0;
  for (int64_t token = 1; token < counts_.vocabulary(); ++token)
    if (counts_.count(token) > counts_.count(likeliest_)) likeliest_ = token;
  if (!counts_.has_pairs()) return;
  weight_ = best_weight();
  likeliest_after_ = likeliest_behind_each();
}

double NgramModel::p(int64_t before, int64_t token) const {
  const int64_t seen = counts_.count_before(before);
  if (seen == 0) return p(token);
  const auto share =
      static_cast<double>(counts_.pairs().count(before, token)) / static_cast<double>(seen);
  return weight_ * share + (1 - weight_) * p(token);
}

// The likelihood is concave in the weight, so its slope has one zero.
double NgramModel::best_weight() const {
  struct Term {
    double count, gain, p;  // the token has weight * gain + p, but for its own occurrence
  };
  std::vector<Term> terms;
  counts_.pairs().each([&](int64_t before, int64_t token, int64_t count) {
    const int64_t others = counts_.count_before(before) - 1;
    if (others == 0) return;  // without this one v was never seen, and the weight does not matter
    const double p = smoothed(counts_.count(token), 1);
    const auto share = static_cast<double>(count - 1) / static_cast<double>(others);
    terms.push_back({static_cast<double>(count), share - p, p});
  });
  const auto slope = [&](double weight) {
    double sum = 0;
    for (const auto& term : terms) sum += term.count * term.gain / (term.p + weight * term.gain);
    return sum;
  };
  if (slope(0) <= 0) return 0;
  constexpr int kHalvings = 30;
  double low = 0, high = 1;
  for (int n = 0; n < kHalvings; ++n) {
    const double middle = (low + high) / 2;
    (slope(middle) > 0 ? low : high) = middle;
  }
  return low;  // below 1: what was never seen stays possible
}

std::vector<int64_t> NgramModel::likeliest_behind_each() const {
  std::vector<int64_t> likeliest(counts_.vocabulary(), likeliest_);
  std::vector<double> best(counts_.vocabulary(), (1 - weight_) * p(likeliest_));
  counts_.pairs().each([&](int64_t before, int64_t token, int64_t) {
    const double its = p(before, token);
    if (its < best[before] || (its == best[before] && token >= likeliest[before])) return;
    best[before] = its, likeliest[before] = token;
  });
  return likeliest;
}

}  // namespace headlab
