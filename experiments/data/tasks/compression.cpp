// MAD's compression (Poli et al., arXiv 2403.17844): random symbols and a last one that ends them,
// all to be given back from one state of the model, by `head: bottleneck` of a decoder.
//
//   ids      3 0 7 7 2 <end>
//   targets  3 0 7 7 2 <end>    the last too, though it says nothing
#include "core/torch.h"
#include "experiments/data/tasks/rule_task.h"

namespace headlab {
namespace {

class Compression : public RuleTask {
 public:
  struct Options : SyntheticOptions {
    Options() { symbols = 16, context = 32; }
    void check(const Complain& complain) const override {
      if (symbols < 3) complain("symbols", "must be at least 3: two to tell apart, and the last");
      if (context < 2) complain("context", "must be at least 2: a symbol, and the last");
    }
  };

  explicit Compression(const Options& options) : RuleTask(options), end_(symbols() - 1) {}

  // Each place but the last is any symbol, the last always the same.
  std::optional<Answers> answers(const Batch&) const override {
    auto answers = drawn_between(0, end_, "symbols, the last place known");
    const auto last = ids_between(end_, end_ + 1, vocabulary());
    answers.among =
        at::cat({answers.among.expand({context() - 1, vocabulary()}), last.unsqueeze(0)})
            .unsqueeze(0);  // [1,T,V]
    return answers;
  }
  DataShape shape() const override {
    auto shape = RuleTask::shape();
    shape.targets_are_ids = true;
    return shape;
  }

  std::vector<std::string> token_texts() const override {
    auto texts = RuleTask::token_texts();
    texts[end_] = "<end>";
    return texts;
  }

  std::vector<int64_t> label(const RuleExample& example, bool) const override {
    if (example.ids.back() != end_) refuse_place(context() - 1, "is not the symbol that ends");
    return example.ids;
  }

 private:
  bool targets_follow() const override { return false; }

  RuleExample draw(Draws& draws, bool) const override {
    std::vector<int64_t> ids(context(), end_);
    for (int64_t t = 0; t + 1 < context(); ++t) ids[t] = draws.below(end_);
    return {.ids = std::move(ids)};
  }

  int64_t end_;
};

const RegisterData<Compression> compression("compression",
                                            "random symbols, all to be given back from one state");

}  // namespace
}  // namespace headlab
