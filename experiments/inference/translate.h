// Beam search with a model that reads one text and writes another.
#pragma once

#include <vector>

#include "experiments/models/model.h"

namespace headlab {

struct BeamOptions {
  int64_t width = 1;       // 1: greedy
  double power = 1;        // a finished text is ranked by its log-probability / n^power
  int64_t max_length = 0;  // ids of a text, its start included; 0: the model's context
  bool cache = true;
};

struct Translated {
  std::vector<int64_t> ids;  // behind `start`, up to and with `end` where it was reached
  double score = 0;          // sum of ln p / n^power, n = ids.size()
};

// Of every source in a batch (source [N,S], source_length), whatever stands beside it. Each step
// takes the 2 width likeliest continuations of what is alive (pad excluded): those that end, by
// `end` or by their length, are finished where they rank among the first `width`, else dropped; the
// first `width` others live on. Over when `width` texts are finished and no live one ranks above
// the worst of them. Needs shape.start, .end and .pad.
std::vector<Translated> translate(Model& model, const Batch& sources, const DataShape& shape,
                                  const BeamOptions& options, const Compute& compute);

}  // namespace headlab
