// Synthetic tasks whose targets follow from an example's ids by a rule, and need not be the token
// that comes next. Examples are drawn, then labelled by the rule that files of expected labels
// (format headlab_task) are judged by.
#pragma once

#include "experiments/data/tasks/synthetic.h"

namespace headlab {

// An example's ids, and what they alone do not tell.
struct RuleExample {
  std::vector<int64_t> ids = {};      // [T]
  std::optional<int64_t> last = {};   // the token behind them
  std::vector<int64_t> queries = {};  // places of what is asked, in any order
  std::vector<int64_t> map = {};      // of each key its value; empty: the task's own
};

class RuleTask : public SyntheticSource {
 public:
  const Task& task() const override { return prediction_by_class(); }
  // Targets [T], kIgnored where nothing is asked. DataError, by place, where the example is none of
  // this task. `evaluated`: what an evaluation asks, whatever training asks.
  virtual std::vector<int64_t> label(const RuleExample& example, bool evaluated) const = 0;

 protected:
  using SyntheticSource::SyntheticSource;

 private:
  virtual RuleExample draw(Draws& draws, bool trained_on) const = 0;

  void write_example(Draws& draws, ExampleUse use, int64_t* ids, int64_t* targets) const final;
};

// DataError: "place 7: ...".
[[noreturn]] void refuse_place(int64_t t, const std::string& what);

// Keys are the lower half of n symbols, values the upper one.
struct Halves {
  int64_t n = 0;
  int64_t keys() const { return n / 2; }
  int64_t values() const { return n - keys(); }
  bool is_key(int64_t id) const { return id < keys(); }
  bool is_value(int64_t id) const { return id >= keys() && id < n; }
  std::vector<std::string> texts() const;  // "k0", ..., "v0", ...
};

// `targets: next`: every next token, as recall within a context is trained; `answers`: values of
// keys that were shown before, as it is judged. An evaluation always asks for answers.
struct AnswerOptions : SyntheticOptions {
  std::string targets = "next";
  bool answers_only() const { return targets == "answers"; }
  void visit(Fields& f) override;
};

}  // namespace headlab
