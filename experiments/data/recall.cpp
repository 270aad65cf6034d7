// Multi-query associative recall (Arora et al., "Zoology: Measuring and Improving Recall in
// Efficient Language Models", arXiv 2312.04927): key-value pairs, then each key once more, followed
// by its value, which is scored.
//
//   k3 v8 k0 v5 k2 v1 | v9 v2 k0 v5 v4 v4 k3 v8 v0 v7 ... k2 v1 ...
//
// Slot g = 1, 2, ... of the second part (two tokens) has a weight of g^(power - 1), a power law;
// every key in turn takes a slot that is still free. The rest is filled with random values, so that
// no key is bound twice. The lower half of the symbols are keys, the upper half values.
#include <cmath>
#include <numeric>

#include "experiments/data/synthetic.h"

namespace headlab {
namespace {

class Recall : public SyntheticSource {
 public:
  struct Options : SyntheticOptions {
    std::optional<int64_t> pairs;
    double power = 0.01;

    int64_t pair_count() const { return pairs.value_or(std::max<int64_t>(1, context / 8)); }

    void visit(Fields& f) override {
      SyntheticOptions::visit(f);
      f("pairs", pairs, "key-value pairs (default: context/8, at least 1)", at_least(1));
      f("power", power, "of the power law; 1: queries are spread evenly", above(0));
    }
    void check(const Complain& complain) const override {
      const std::string count = std::to_string(pair_count());
      if (4 * pair_count() > context)
        complain("context", "must be at least 4 tokens a pair, and there are " + count + " pairs");
      if (2 * pair_count() > symbols)
        complain("symbols", "must be at least 2 a pair, and there are " + count + " pairs");
    }
  };

  explicit Recall(const Options& options)
      : SyntheticSource(options), pairs_(options.pair_count()), keys_(options.symbols / 2) {
    const int64_t slots = (context() + 1 - 2 * pairs_) / 2;
    for (int64_t g = 1; g <= slots; ++g) weights_.push_back(std::pow(g, options.power - 1));
  }

  std::vector<std::string> token_texts() const override {
    std::vector<std::string> texts;
    for (int64_t id = 0; id < symbols(); ++id)
      texts.push_back(id < keys_ ? "k" + std::to_string(id) : "v" + std::to_string(id - keys_));
    return texts;
  }

 private:
  void draw(Draws& draws, Sequence& sequence) const override {
    const int64_t values = symbols() - keys_;
    for (int64_t& token : sequence.tokens) token = keys_ + draws.below(values);
    const auto key = draws.distinct(pairs_, keys_), value = draws.distinct(pairs_, values);
    std::vector<double> free = weights_;
    for (int64_t i = 0; i < pairs_; ++i) {
      const int64_t query = 2 * pairs_ + 2 * take_slot(draws, free);
      for (int64_t at : {2 * i, query}) {
        sequence.tokens[at] = key[i];
        sequence.tokens[at + 1] = keys_ + value[i];
      }
      sequence.scored[query + 1] = true;
    }
  }

  // Draws a slot by the weights that are left, and leaves it none.
  static int64_t take_slot(Draws& draws, std::vector<double>& free) {
    double left = draws.unit() * std::accumulate(free.begin(), free.end(), 0.0);
    size_t slot = 0;
    for (size_t g = 0; g < free.size() && left >= 0; ++g) {
      if (free[g] == 0) continue;
      slot = g;  // the last free one, should rounding leave a rest
      left -= free[g];
    }
    free[slot] = 0;
    return static_cast<int64_t>(slot);
  }

  int64_t pairs_, keys_;
  std::vector<double> weights_;  // of each slot
};

const RegisterData<Recall> recall_source("recall", "key-value pairs, then queries of keys");

}  // namespace
}  // namespace headlab
