// Synthetic tasks: every example is drawn from (seed, step, n), or for evaluation from (split, n)
// alone.
#pragma once

#include "experiments/data/draws.h"
#include "experiments/data/sequences.h"
#include "experiments/data/test_part.h"

namespace headlab {

// DataSource::solved_at() of tasks whose chance is far below: a model that has found out how is
// soon beyond it.
inline constexpr double kSolvedAt = 0.9;

struct SyntheticOptions : DataOptions, TestPartOption {
  int64_t symbols = 64, eval_examples = 512, train_examples = 0;

  SyntheticOptions() : TestPartOption(TestPart::Own::kWord) {}
  void visit(Fields& f) override;
};

// What an example is drawn for. Some tasks train on other sequences, or ask more of them, than they
// are judged by.
struct ExampleUse {
  bool trained_on = false, evaluated = false;
};

class SyntheticSource : public SequenceSource {
 public:
  int64_t vocabulary() const override { return symbols_; }
  int64_t epoch_examples() const final { return train_examples_; }
  Batch epoch_batch(uint64_t seed, int64_t index, int64_t count) const final;
  int64_t examples(Split split) const final;
  std::vector<std::string> token_texts() const override;              // "0", "1", ...
  std::optional<Answers> answers(const Batch& batch) const override;  // any symbol

 protected:
  explicit SyntheticSource(const SyntheticOptions& options);
  // Any of first .. end - 1; what: these, in words.
  Answers drawn_between(int64_t first, int64_t end, const std::string& what) const;
  int64_t symbols() const { return symbols_; }

 private:
  // Writes ids [T] and targets [T].
  virtual void write_example(Draws& draws, ExampleUse use, int64_t* ids,
                             int64_t* targets) const = 0;

  void train_example(uint64_t bits, int64_t* ids, int64_t* targets) const final;
  void eval_example(Split split, int64_t n, int64_t* ids, int64_t* targets) const final;

  int64_t symbols_, eval_examples_, train_examples_;
};

struct Sequence {
  std::vector<int64_t> tokens;  // [context + 1]
  std::vector<bool> scored;     // [context + 1] true: to be predicted from the tokens before it
};

// Tasks whose targets are next tokens: how one sequence is drawn, and which of its tokens are to be
// predicted.
class NextTokenTask : public SyntheticSource {
 public:
  std::optional<double> solved_at() const override { return kSolvedAt; }

 protected:
  using SyntheticSource::SyntheticSource;

 private:
  // Fills a sequence of zeros of which nothing is scored.
  virtual void draw(Draws& draws, Sequence& sequence) const = 0;

  void write_example(Draws& draws, ExampleUse use, int64_t* ids, int64_t* targets) const final;
};

}  // namespace headlab
