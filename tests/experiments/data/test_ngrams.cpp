// Models of counted tokens, against numbers that were counted by hand.
#include <cmath>
#include <map>
#include <random>

#include "experiments/data/ngrams.h"
#include "tests/catch.h"

namespace headlab::test_ngrams {
namespace {

NgramModel model_of(const std::vector<int64_t>& text, int64_t vocabulary) {
  NgramCounts counts(vocabulary, /*pairs=*/true);
  for (size_t t = 1; t < text.size(); ++t) counts.add(text[t - 1], text[t]);
  return {std::move(counts), vocabulary};
}

}  // namespace

TEST_CASE("unigrams have one occurrence more than they were counted with", "[data]") {
  const auto model = model_of({0, 1, 0, 1, 0, 2, 0, 1, 0}, 4);  // behind the first: 4, 3, 1, 0
  CHECK(model.p(0) == Approx(5.0 / 12));
  CHECK(model.p(1) == Approx(4.0 / 12));
  CHECK(model.p(2) == Approx(2.0 / 12));
  CHECK(model.p(3) == Approx(1.0 / 12));
  CHECK(model.likeliest() == 0);
  CHECK(model.counted() == 8);
}

// 0 1 three times, 0 2 once, 1 0 three times, 2 0 once. With one of them left out the unigrams are
// 4/11, 3/11, 1/11, and the weight w has the likelihood
//   (3/11 (1 - w) + 2/3 w)^3 (1/11 (1 - w)) (4/11 (1 - w) + w)^3
// (2 0 without itself has no weight), whose slope is zero where 637 w^2 - 86 w - 309 = 0.
TEST_CASE("the weight of bigrams is the likeliest with each token left out in turn", "[data]") {
  const auto model = model_of({0, 1, 0, 1, 0, 2, 0, 1, 0}, 4);
  const double w = (86 + std::sqrt(86.0 * 86 + 4 * 637.0 * 309)) / (2 * 637);
  CHECK(model.weight() == Approx(w).margin(2e-6));
  CHECK(model.p(0, 1) == Approx(w * 3 / 4 + (1 - w) / 3).margin(2e-6));
  CHECK(model.p(0, 3) == Approx((1 - w) / 12).margin(2e-6));
  CHECK(model.p(1, 0) == Approx(w + (1 - w) * 5 / 12).margin(2e-6));
  CHECK(model.p(3, 2) == Approx(2.0 / 12));  // 3 was never seen
  CHECK(model.likeliest(0) == 1);
  CHECK(model.likeliest(1) == 0);
  CHECK(model.likeliest(3) == 0);
}

TEST_CASE("what stands before a token that it does not foretell has no weight", "[data]") {
  // Behind 0 and behind 1 there is each as often: to leave one out makes the other the likelier.
  const auto model = model_of({0, 0, 1, 1, 0}, 2);
  CHECK(model.weight() == 0);
  CHECK(model.p(0, 0) == Approx(model.p(0)));
}

TEST_CASE("probabilities behind every token sum to one", "[data]") {
  std::mt19937 random(5);  // NOLINT(cert-msc32-c,cert-msc51-cpp)
  constexpr int64_t kVocabulary = 23;
  std::vector<int64_t> text(400);
  for (auto& token : text) token = static_cast<int64_t>(random() % (kVocabulary - 3));
  const auto model = model_of(text, kVocabulary);
  double all = 0;
  for (int64_t token = 0; token < kVocabulary; ++token) all += model.p(token);
  CHECK(all == Approx(1));
  for (int64_t before = 0; before < kVocabulary; ++before) {
    double sum = 0, best = 0;
    for (int64_t token = 0; token < kVocabulary; ++token) {
      sum += model.p(before, token);
      best = std::max(best, model.p(before, token));
    }
    CHECK(sum == Approx(1));
    CHECK(model.p(before, model.likeliest(before)) == best);
  }
}

TEST_CASE("pairs of a large vocabulary are counted as a map counts them", "[data]") {
  std::mt19937_64 random(7);  // NOLINT(cert-msc32-c,cert-msc51-cpp)
  constexpr int64_t kVocabulary = 1 << 24;
  PairCounts counts(kVocabulary);
  std::map<std::pair<int64_t, int64_t>, int64_t> wanted;
  for (int n = 0; n < 20000; ++n) {
    const auto before = static_cast<int64_t>(random() % 100) * 167771;
    const auto token = static_cast<int64_t>(random() % 100) * 167769;
    counts.add(before, token), ++wanted[{before, token}];
  }
  CHECK(counts.different() == std::ssize(wanted));
  std::map<std::pair<int64_t, int64_t>, int64_t> found;
  counts.each([&](int64_t before, int64_t token, int64_t count) {
    found[{before, token}] = count;
    if (counts.count(before, token) != count) FAIL("two counts of one pair");
  });
  CHECK(found == wanted);
  CHECK(counts.count(1, 1) == 0);
}

}  // namespace headlab::test_ngrams
