// Copying: a random string, a separator, the string again; the second string is scored (the copy
// task of Graves et al., "Neural Turing Machines", arXiv 1410.5401). The separator is the last id.
#include "experiments/data/tasks/synthetic.h"

namespace headlab {
namespace {

class Copy : public NextTokenTask {
 public:
  struct Options : SyntheticOptions {
    void check(const Complain& complain) const override {
      if (context % 2 != 0)
        complain("context",
                 "must be even: a string, the separator, all but the last of the string again");
    }
  };

  explicit Copy(const Options& options) : NextTokenTask(options) {}

  int64_t vocabulary() const override { return symbols() + 1; }

  std::vector<std::string> token_texts() const override {
    auto texts = SyntheticSource::token_texts();
    texts.push_back("<sep>");
    return texts;
  }
  std::vector<uint8_t> token_classes() const override {
    std::vector<uint8_t> classes(vocabulary(), kWord);
    classes.back() = kSep;
    return classes;
  }

 private:
  void draw(Draws& draws, Sequence& sequence) const override {
    const int64_t separator = context() / 2;
    sequence.tokens[separator] = symbols();
    for (int64_t t = 0; t < separator; ++t) {
      const int64_t again = separator + 1 + t;
      sequence.tokens[t] = sequence.tokens[again] = draws.below(symbols());
      sequence.scored[again] = true;
    }
  }
};

const RegisterData<Copy> copy_source("copy", "a random string, a separator, the string again");

}  // namespace
}  // namespace headlab
