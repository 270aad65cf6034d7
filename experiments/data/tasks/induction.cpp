// Induction: a block of random tokens, again and again, so that the next token is the one that
// followed the last occurrence of this one (Olsson et al., "In-context Learning and Induction
// Heads", arXiv 2209.11895).
//
// The length of the block, the period, is drawn from [context/8, context/2]: a fixed one could be
// learned by position alone. (Where in the block a sequence starts makes no difference, as its
// tokens are random.) Scored from the second occurrence on, after its first token, which could only
// be guessed.
#include "experiments/data/tasks/synthetic.h"

namespace headlab {
namespace {

class Induction : public NextTokenTask {
 public:
  struct Options : SyntheticOptions {
    void check(const Complain& complain) const override {
      if (context < 8) complain("context", "must be at least 8: periods start at context/8");
    }
  };

  explicit Induction(const Options& options) : NextTokenTask(options) {}

 private:
  void draw(Draws& draws, Sequence& sequence) const override {
    const int64_t T = context();
    const int64_t period = draws.between((T + 7) / 8, T / 2);
    for (int64_t t = 0; t <= T; ++t) {
      sequence.tokens[t] = t < period ? draws.below(symbols()) : sequence.tokens[t - period];
      sequence.scored[t] = t > period;
    }
  }
};

const RegisterData<Induction> induction_source("induction",
                                               "a block of random tokens, again and again");

}  // namespace
}  // namespace headlab
