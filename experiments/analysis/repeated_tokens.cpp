#include "experiments/analysis/repeated_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/data/tasks/synthetic.h"
#include "experiments/models/site_probes.h"

namespace headlab {
namespace {

// What a probe streamed, in the site's grid: wanted name -> name in the table of statistics.
HeadScores scores_of(const SiteHeads& heads, const HeadProbe& probe,
                     const std::map<std::string, std::string>& names) {
  HeadScores scores;
  for (const auto& [name, statistic] : names) {
    auto grid = heads.no_values();
    for (const auto& [key, sums] : probe.sums()) {
      const auto all = head_values(sums);
      if (const auto found = all.find(statistic); found != all.end())
        grid[key.layer].narrow(0, 0, sums.heads).copy_(at::tensor(found->second, at::kDouble));
    }
    scores[name] = grid;
  }
  return scores;
}

LabelledArray head_array(const HeadScores& scores, const char* name, const char* long_name,
                       const char* formula, std::map<std::string, int64_t> counts) {
  const auto values = scores.at(name).contiguous();
  const double* first = values.data_ptr<double>();
  return {.about = {name, "1", long_name, formula},
          .dims = {"layer", "head"},
          .values = {first, first + values.numel()},
          .count_attributes = std::move(counts)};
}

}  // namespace

RepeatedTokens repeated_tokens(int64_t vocabulary, int64_t context,
                               const std::vector<uint8_t>& classes,
                               const RepeatedTokensOptions& options) {
  std::vector<int64_t> words;
  for (int64_t id = 0; id < vocabulary; ++id)
    if (classes.empty() || (classes[id] != kCls && classes[id] != kSep)) words.push_back(id);
  const int64_t count = std::ssize(words);
  RepeatedTokens made;
  made.period = std::min(options.period, context / 2);
  if (made.period < 2 || count == 0)
    throw DataError(fmt::format(
        "random tokens cannot be repeated: the context is {} tokens, at least 4 are needed; the "
        "vocabulary has {} words, at least 1 is needed",
        context, count));
  made.distinct = count >= made.period;
  std::vector<Tensor> rows;
  for (int64_t b = 0; b < options.batch; ++b) {
    Draws draws(example_bits(options.seed, 0, b));
    std::vector<int64_t> block;
    if (made.distinct)
      block = draws.distinct(made.period, count);
    else
      for (int64_t i = 0; i < made.period; ++i) block.push_back(draws.below(count));
    for (int64_t& token : block) token = words[token];
    rows.push_back(at::tensor(block, at::kLong).repeat({2}));
  }
  made.ids = at::stack(rows);
  return made;
}

HeadScores repeated_token_scores(Model& model, const SiteHeads& heads, const RepeatedTokens& tokens,
                                 const Compute& compute) {
  TORCH_CHECK(!model.is_training(), "the model must be in eval mode");
  at::NoGradGuard no_grad;
  SiteProbes probes(model);
  auto& probe = probes.at(heads.name());
  probe.statistics = probe.matches = true;
  probe.divergence = false;
  const Batch batch{tokens.ids.to(compute.device)};
  probes.tell(batch);
  model.forward(batch, {.observer = &probes, .backend = compute.backend});
  return scores_of(
      heads, probe,
      {{"induction_repeated", "induction"}, {"duplicate_token_repeated", "duplicate_token"}});
}

std::vector<LabelledArray> repeated_token_arrays(const HeadScores& scores,
                                               const RepeatedTokens& tokens,
                                               const RepeatedTokensOptions& options) {
  const std::map<std::string, int64_t> facts{{"period", tokens.period},
                                             {"batch", tokens.ids.size(0)},
                                             {"seed", static_cast<int64_t>(options.seed)},
                                             {"distinct", tokens.distinct ? 1 : 0}};
  return {head_array(scores, "induction_repeated",
                     "weight on tokens after the earlier copy, on repeated random tokens",
                     "induction on random tokens repeated twice, no begin token; distinct tokens: "
                     "mean over i >= period of a[i,i-period+1]",
                     facts),
          head_array(scores, "duplicate_token_repeated",
                     "weight on the earlier copy, on repeated random tokens",
                     "duplicate_token on random tokens repeated twice, no begin token; distinct "
                     "tokens: mean over i >= period of a[i,i-period]",
                     facts)};
}

}  // namespace headlab
