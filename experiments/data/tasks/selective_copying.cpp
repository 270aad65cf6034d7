// MAD's selective copying (Poli et al., arXiv 2403.17844; Gu and Dao, arXiv 2312.00752): content
// among blanks, in its order to be said behind a symbol that asks for it. What is said is not read
// again: blanks stand where the answers are asked.
//
//   ids      _ c3 _ _ c0 _ c5 | copy | _  _  _
//   targets                          | c3 c0 c5
#include <fmt/format.h>

#include "experiments/data/tasks/rule_task.h"

namespace headlab {
namespace {

class SelectiveCopying : public RuleTask {
 public:
  struct Options : SyntheticOptions {
    int64_t copied = 8;

    Options() { symbols = 16; }
    void visit(Fields& f) override {
      SyntheticOptions::visit(f);
      f("copied", copied, "content symbols of an example", at_least(1));
    }
    void check(const Complain& complain) const override {
      if (symbols < 3)
        complain("symbols", "must be at least 3: a content, the blank, the copy symbol");
      if (context < 2 * copied + 1)
        complain("context", fmt::format("must be at least {}: {} symbols, the copy symbol, their "
                                        "places",
                                        2 * copied + 1, copied));
    }
  };

  explicit SelectiveCopying(const Options& options)
      : RuleTask(options), copied_(options.copied), blank_(symbols() - 2), copy_(symbols() - 1) {}

  std::optional<Answers> answers(const Batch&) const override {
    return drawn_between(0, blank_, "content symbols");
  }
  std::optional<double> solved_at() const override { return kSolvedAt; }

  std::vector<std::string> token_texts() const override {
    auto texts = RuleTask::token_texts();
    texts[blank_] = "_", texts[copy_] = "<copy>";
    return texts;
  }

  std::vector<int64_t> label(const RuleExample& example, bool) const override {
    const int64_t T = context(), asked = T - copied_;
    if (example.ids[asked - 1] != copy_) refuse_place(asked - 1, "is not the copy symbol");
    std::vector<int64_t> targets(T, kIgnored);
    int64_t next = asked;
    for (int64_t t = 0; t < asked - 1; ++t) {
      if (example.ids[t] == blank_) continue;
      if (next == T) refuse_place(t, fmt::format("is content beyond the {} to copy", copied_));
      targets[next++] = example.ids[t];
    }
    if (next != T)
      refuse_place(asked - 1,
                   fmt::format("only {} symbols stand before it, not {}", next - asked, copied_));
    return targets;
  }

 private:
  bool targets_follow() const override { return false; }

  RuleExample draw(Draws& draws, bool) const override {
    std::vector<int64_t> content(copied_), blanks(copied_);  // blanks[i]: right before content i
    for (auto& symbol : content) symbol = draws.below(blank_);
    for (int64_t n = 0; n < context() - 2 * copied_ - 1; ++n) ++blanks[draws.below(copied_)];
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < copied_; ++i) {
      ids.insert(ids.end(), blanks[i], blank_);
      ids.push_back(content[i]);
    }
    ids.push_back(copy_);
    ids.insert(ids.end(), copied_, blank_);
    return {.ids = std::move(ids)};
  }

  int64_t copied_, blank_, copy_;
};

const RegisterData<SelectiveCopying> selective_copying("selective_copying",
                                                       "content among blanks, to be said in order");

}  // namespace
}  // namespace headlab
