// Heads on inputs made for the purpose: random tokens that are repeated (Olsson et al., arXiv
// 2209.11895).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "experiments/data/source.h"
#include "experiments/logs/result_arrays.h"
#include "experiments/models/site_heads.h"

namespace headlab {

// Statistics by name: [L,H] float64 by original index; NaN for heads that are gone and kinds
// without a map over tokens.
using HeadScores = std::map<std::string, Tensor>;

struct RepeatedTokensOptions {
  int64_t period = 50, batch = 10;
  uint64_t seed = 0;
};

// Random tokens twice, without a begin token. The same for the same seed.
struct RepeatedTokens {
  Tensor ids;            // [batch, 2 period]
  int64_t period = 0;    // shorter than wanted where the context is shorter than two
  bool distinct = true;  // false where the vocabulary is smaller than the period
};

// `classes` of the tokens (DataSource::token_classes(), may be empty): those of class kCls and kSep
// are not drawn. DataError where the context is shorter than 4 or no token is left.
RepeatedTokens repeated_tokens(int64_t vocabulary, int64_t context,
                               const std::vector<uint8_t>& classes,
                               const RepeatedTokensOptions& options);

// `induction_repeated` and `duplicate_token_repeated`: the statistics `induction` and
// `duplicate_token` on repeated random tokens, streamed. Where tokens are distinct, they are the
// means over i >= period of a[i, i - period + 1] and a[i, i - period]. What the roles `induction`
// and `duplicate` ask about. The model is in eval mode.
HeadScores repeated_token_scores(Model& model, const SiteHeads& heads, const RepeatedTokens& tokens,
                                 const Compute& compute = {});

// The arrays (layer, head) of analysis/<site>, with what they were measured on as attributes.
std::vector<LabelledArray> repeated_token_arrays(const HeadScores& scores,
                                                 const RepeatedTokens& tokens,
                                                 const RepeatedTokensOptions& options);
}  // namespace headlab
