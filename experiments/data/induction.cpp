// Induction: random tokens that from a random place on repeat with a period, so that the next token
// is the one that followed the last occurrence of this one (Olsson et al., "In-context Learning and
// Induction Heads", arXiv 2209.11895).
//
// The period is drawn from [context/8, context/2] and the place of the repetition from
// [period, context - period]: a fixed period could be learned by position alone. Scored from the
// second occurrence on: positions whose own token is a repetition (the first repeated token could
// only be guessed).
#include "experiments/data/synthetic.h"

namespace headlab {
namespace {

class Induction : public SyntheticSource {
 public:
  struct Options : SyntheticOptions {
    void check(const Complain& complain) const override {
      if (context < 8) complain("context", "must be at least 8: periods start at context/8");
    }
  };

  explicit Induction(const Options& options) : SyntheticSource(options) {}

 private:
  void draw(Draws& draws, Sequence& sequence) const override {
    const int64_t T = context();
    const int64_t period = draws.between((T + 7) / 8, T / 2);
    const int64_t start = draws.between(period, T - period);  // of the second occurrence
    for (int64_t t = 0; t <= T; ++t) {
      sequence.tokens[t] = t < start ? draws.below(symbols()) : sequence.tokens[t - period];
      sequence.scored[t] = t > start;
    }
  }
};

const RegisterData<Induction> registered("induction", "random tokens that repeat with a period");

}  // namespace
}  // namespace headlab
