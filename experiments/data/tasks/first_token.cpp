// First token: random tokens, of which the last one to be predicted equals the first. What it takes
// is one head that attends to position 0, at any distance. Only that prediction is scored.
#include "experiments/data/tasks/synthetic.h"

namespace headlab {
namespace {

class FirstToken : public NextTokenTask {
 public:
  struct Options : SyntheticOptions {
    void check(const Complain& complain) const override {
      if (context < 2) complain("context", "must be at least 2: one token would be its own first");
    }
  };

  explicit FirstToken(const Options& options) : NextTokenTask(options) {}

 private:
  bool targets_follow() const override { return false; }
  void draw(Draws& draws, Sequence& sequence) const override {
    for (int64_t& token : sequence.tokens) token = draws.below(symbols());
    sequence.tokens.back() = sequence.tokens.front();
    sequence.scored.back() = true;
  }
};

const RegisterData<FirstToken> first_token_source("first_token",
                                                  "the last token must equal the first");

}  // namespace
}  // namespace headlab
