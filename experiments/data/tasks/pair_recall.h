// Recall within a context of key-value pairs, what in_context_recall and noisy_recall share (MAD;
// Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures", arXiv 2403.17844).
//
//   k2 v5 k0 v1 n3 n7 k2 v5 k1 v1 k0 | v1
//
// Pairs without a separator, of keys that keep the value they are first shown with (two may share
// one); the last pair is of a key that was shown before, and its value lies behind the last id. A
// pair may be two symbols of noise instead.
#pragma once

#include "experiments/data/tasks/rule_task.h"

namespace headlab {

// `targets: next`: every next token, as these tasks are trained; `answers`: values of keys that
// were shown before, as they are judged. An evaluation always asks for answers.
struct AnswerOptions : SyntheticOptions {
  std::string targets = "next";
  bool answers_only() const { return targets == "answers"; }
  void visit(Fields& f) override;
};

struct PairRecallOptions : AnswerOptions {
  int64_t noise_symbols = 0;
  double noise = 0;

  PairRecallOptions() { symbols = 16, context = 63; }
  Halves halves() const { return {symbols - noise_symbols}; }
  void visit(Fields& f) override;
  void check(const Complain& complain) const override;
};

class PairRecall : public RuleTask {
 public:
  using Options = PairRecallOptions;
  explicit PairRecall(const Options& options);

  const Task& task() const override;
  std::optional<double> solved_at() const override { return kSolvedAt; }
  std::vector<std::string> token_texts() const override;
  std::optional<Answers> answers(const Batch& batch) const override;  // any value
  std::vector<int64_t> label(const RuleExample& example, bool evaluated) const override;

 private:
  RuleExample draw(Draws& draws, bool trained_on) const override;

  Options options_;
  Halves halves_;
};

}  // namespace headlab
