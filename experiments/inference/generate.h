// Sampling from a language model.
#pragma once

#include <functional>
#include <optional>

#include "experiments/models/model.h"

namespace headlab {

struct SamplingOptions {
  int64_t tokens = 200;
  double temperature = 1;  // 0: the likeliest token, lowest id on a tie
  int64_t top_k = 0;       // 0: all; else logits >= the k-th largest (ties stay)
  uint64_t seed = 1337;
  bool cache = true;
  std::vector<int64_t> ends = {};  // ids that end the text: they are not handed on
};

// Probabilities of the next token as they are drawn from: logits [...,V] / temperature (above 0),
// those below the top_k-th largest left out.
Tensor likely(const Tensor& logits, double temperature, int64_t top_k);

// Continues `prompt` (at least one id) and hands each new id to `emit`. With the cache a step costs
// one token; at a full context the prompt is cropped to its last ids and the cache rebuilt, as
// positions restart at 0.
void generate(Model& model, const std::vector<int64_t>& prompt, const SamplingOptions& options,
              const Compute& compute, const std::function<void(int64_t)>& emit);

// What the caches of all layers hold of a token, after a full context of one text [bytes]; nothing
// where text is not written with a cache.
std::optional<double> cache_bytes_per_token(Model& model, const ModelOptions& options);

}  // namespace headlab
