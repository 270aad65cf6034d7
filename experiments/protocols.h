// Heads on inputs made for the purpose (statistics.md section 9): repeated random tokens, the first
// token of texts, and what a head copies while a model generates.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "experiments/data/source.h"
#include "experiments/models/model.h"
#include "experiments/results.h"

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
// and `duplicate` ask about. The model is in eval mode, as in all that follows.
HeadScores repeated_token_scores(Model& model, const RepeatedTokens& tokens);

struct SinkOptions {
  int64_t texts = 100, length = 64;
  double threshold = 0.3;  // on an example's mean first_token
};

struct SinkRates {
  HeadScores scores;              // `sink_rate`
  double model = 0;               // its mean over heads; NaN without any
  int64_t texts = 0, length = 0;  // fewer than wanted where the split or the context has fewer
};

// Share of the first texts of a split whose mean weight on the first token is above the threshold:
// threshold first, average then. DataError where the split has no examples.
SinkRates sink_rates(Model& model, const DataSource& data, Split split, const SinkOptions& options);

// The arrays (layer, head) of analysis/<site>, with what they were measured on as attributes.
std::vector<ResultArray> repeated_token_arrays(const HeadScores& scores,
                                               const RepeatedTokens& tokens,
                                               const RepeatedTokensOptions& options);
std::vector<ResultArray> sink_arrays(const SinkRates& rates, const SinkOptions& options);

// One generation from a prompt in which a needle lies (Wu et al. 2024, arXiv 2404.15574).
struct Retrieval {
  std::vector<int64_t> prompt;            // tokens
  int64_t begin = 0, end = 0;             // the needle: prompt[begin .. end - 1]
  std::vector<int64_t> generated;         // tokens, one a step
  Tensor heaviest;                        // [steps,L,H] int64: argmax key of each head in that step
  std::vector<std::string> wanted, said;  // words of the needle and of what was generated
};

// Share of the needle's tokens that a head copied: tokens whose place is the head's heaviest key in
// a step that generates them. A token copied twice counts once, as in the paper (the released code
// adds repeats). [L,H] float64.
Tensor retrieval_score(const Retrieval& run);

// ROUGE-1 recall in percent: words of `wanted` that `said` holds, each as often as it does.
double rouge1_recall(const std::vector<std::string>& wanted, const std::vector<std::string>& said);

// Mean score of the runs whose ROUGE-1 recall is above 50: [L,H], NaN where there is none.
Tensor mean_retrieval_score(const std::vector<Retrieval>& runs);

}  // namespace headlab
