#include "experiments/analysis/repeated_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/analysis/head_measurements.h"
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

class Repeated : public HeadMeasurement {
 public:
  using HeadMeasurement::HeadMeasurement;

  bool of_examples() const override { return false; }

  std::vector<std::string> names() const override {
    constexpr int64_t kShortest = 4;  // two tokens, twice
    if (!setup_.reads_ids_alone() || !setup_.has_token_map() ||
        setup_.run.model->context() < kShortest)
      return {};
    return {"induction_repeated", "duplicate_token_repeated"};
  }

  void finish(LabelledGroup& to) override {
    const RepeatedTokensOptions options;
    const auto& data = *setup_.run.data;
    auto& model = *setup_.run.model;
    const auto tokens =
        repeated_tokens(data.vocabulary(), model.context(), data.token_classes(), options);
    const auto arrays = repeated_token_arrays(
        repeated_token_scores(model, setup_.heads, tokens, setup_.compute), tokens, options);
    to.arrays.insert(to.arrays.end(), arrays.begin(), arrays.end());
  }
};

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
  const auto array = [&](const char* name, const char* long_name, const char* formula) {
    return LabelledArray{.about = {name, "1", long_name, formula},
                         .dims = {"layer", "head"},
                         .values = numbers(scores.at(name)),
                         .count_attributes = facts};
  };
  return {array("induction_repeated",
                "weight on tokens after the earlier copy, on repeated random tokens",
                "induction on random tokens repeated twice, no begin token; distinct tokens: mean "
                "over i >= period of a[i,i-period+1]"),
          array("duplicate_token_repeated", "weight on the earlier copy, on repeated random tokens",
                "duplicate_token on random tokens repeated twice, no begin token; distinct tokens: "
                "mean over i >= period of a[i,i-period]")};
}

std::unique_ptr<HeadMeasurement> repeated_tokens_measurement(const AnalysisSetup& setup) {
  return std::make_unique<Repeated>(setup);
}

}  // namespace headlab
