// Sampling from a language model.
#pragma once

#include <functional>

#include "experiments/models/model.h"

namespace headlab {

struct SamplingOptions {
  int64_t tokens = 200;
  double temperature = 1;  // 0: the likeliest token, lowest id on a tie
  int64_t top_k = 0;       // 0: all; else logits >= the k-th largest (ties stay)
  uint64_t seed = 1337;
  bool cache = true;
};

// Continues `prompt` (at least one id) and hands each new id to `emit`. With the cache a step costs
// one token; at a full context the prompt is cropped to its last ids and the cache rebuilt, as
// positions restart at 0.
void generate(Model& model, const std::vector<int64_t>& prompt, const SamplingOptions& options,
              const Compute& compute, const std::function<void(int64_t)>& emit);

}  // namespace headlab
