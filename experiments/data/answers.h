// Which answers may be right: what a guess is among, before anything is learned.
#pragma once

#include <string>

#include "experiments/data/source.h"

namespace headlab {

struct Answers {
  // bool: [V] where it is the same of all targets; else [B,1,V], [1,T,V] or [B,T,V].
  Tensor among;
  std::string of;  // "any of 65 tokens"
  // Each of them is drawn as often as any other, whatever stands before it: counts of training
  // foretell nothing.
  bool drawn_alike = false;
};

// Data whose answers are fewer than all tokens, and not those that their shape leaves.
class StatesAnswers {
 public:
  virtual ~StatesAnswers() = default;
  // Of the targets of a batch of an evaluation.
  virtual Answers answers(const Batch& batch) const = 0;
};

// Of data that state none: every class; or every token but those that fill up, begin or hide, and,
// where words are hidden, end.
Answers answers_of(const DataSource& data, const Batch& batch);

// bool [V]: first .. end - 1.
Tensor ids_between(int64_t first, int64_t end, int64_t vocabulary);

}  // namespace headlab
