#include "experiments/protocols.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/data/synthetic.h"
#include "experiments/head_grid.h"

namespace headlab {
namespace {

constexpr double kLeastRecall = 50;  // percent

// What a probe streamed, in the model's grid: wanted name -> name in the table of statistics.
HeadScores scores_of(Model& model, const HeadProbe& probe,
                     const std::map<std::string, std::string>& names) {
  const auto unknown =
      at::full(alive_heads(model).sizes(), std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  HeadScores scores;
  for (const auto& [name, statistic] : names) {
    auto grid = unknown.clone();
    for (const auto& [layer, sums] : probe.sums()) {
      const auto all = head_values(sums);
      if (const auto found = all.find(statistic); found != all.end())
        grid[layer].narrow(0, 0, sums.heads).copy_(at::tensor(found->second, at::kDouble));
    }
    scores[name] = grid;
  }
  return scores;
}

HeadProbe streaming_probe() {
  HeadProbe probe;
  probe.statistics = true;
  probe.divergence = false;
  return probe;
}

void observe(Model& model, const Tensor& ids, HeadProbe& probe) {
  TORCH_CHECK(!model.is_training(), "the model must be in eval mode");
  at::NoGradGuard no_grad;
  ModelContext ctx;
  ctx.probe = &probe;
  probe.tokens = ids.to(model.parameters().front().device());
  model.forward(probe.tokens, ctx);
}

ResultArray head_array(const HeadScores& scores, const char* name, const char* long_name,
                       const char* formula, std::map<std::string, double> attributes) {
  const auto values = scores.at(name).contiguous();
  const double* first = values.data_ptr<double>();
  return {.about = {name, "1", long_name, formula},
          .dims = {"layer", "head"},
          .values = {first, first + values.numel()},
          .attributes = std::move(attributes)};
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

HeadScores repeated_token_scores(Model& model, const RepeatedTokens& tokens) {
  auto probe = streaming_probe();
  probe.matches = true;
  observe(model, tokens.ids, probe);
  return scores_of(
      model, probe,
      {{"induction_repeated", "induction"}, {"duplicate_token_repeated", "duplicate_token"}});
}

SinkRates sink_rates(Model& model, const DataSource& data, Split split,
                     const SinkOptions& options) {
  constexpr int64_t kBatch = 25;
  SinkRates rates;
  rates.texts = std::min(options.texts, data.examples(split));
  rates.length = std::min(options.length, data.context());
  if (rates.texts == 0)
    throw DataError(fmt::format("the data have no examples in the split {}", split_name(split)));
  auto probe = streaming_probe();
  probe.sink_threshold = options.threshold;
  for (int64_t first = 0; first < rates.texts; first += kBatch) {
    const auto batch = data.eval_batch(split, first, std::min(kBatch, rates.texts - first));
    observe(model, batch.ids.narrow(1, 0, rates.length).contiguous(), probe);
  }
  rates.scores = scores_of(model, probe, {{"sink_rate", "sink_rate"}});
  rates.model = rates.scores.at("sink_rate").nanmean().item<double>();
  return rates;
}

std::vector<ResultArray> repeated_token_arrays(const HeadScores& scores,
                                               const RepeatedTokens& tokens,
                                               const RepeatedTokensOptions& options) {
  const std::map<std::string, double> facts{{"period", static_cast<double>(tokens.period)},
                                            {"batch", static_cast<double>(tokens.ids.size(0))},
                                            {"seed", static_cast<double>(options.seed)},
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

std::vector<ResultArray> sink_arrays(const SinkRates& rates, const SinkOptions& options) {
  return {head_array(rates.scores, "sink_rate", "share of texts that sink into the first token",
                     "share of texts whose own mean a[i,0] is > threshold; model: mean over heads",
                     {{"threshold", options.threshold},
                      {"texts", static_cast<double>(rates.texts)},
                      {"length", static_cast<double>(rates.length)},
                      {"model", rates.model}})};
}

Tensor retrieval_score(const Retrieval& run) {
  const int64_t k = run.end - run.begin, steps = std::ssize(run.generated);
  TORCH_CHECK(run.begin >= 0 && k > 0 && run.end <= std::ssize(run.prompt), "a needle from ",
              run.begin, " to ", run.end, " in ", run.prompt.size(), " tokens");
  TORCH_CHECK(run.heaviest.dim() == 3 && run.heaviest.size(0) == steps, "heaviest keys ",
              run.heaviest.sizes(), " for ", steps, " steps");
  const auto heaviest = run.heaviest.to(at::kCPU, at::kLong).unsqueeze(-1);  // [steps,L,H,1]
  auto copied = at::zeros({run.heaviest.size(1), run.heaviest.size(2), k}, at::kBool);
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<int64_t> places;  // of the needle's tokens that this step generates; others: -1
    for (int64_t place = run.begin; place < run.end; ++place)
      places.push_back(run.prompt[place] == run.generated[step] ? place : -1);
    copied.logical_or_(heaviest[step].eq(at::tensor(places, at::kLong)));  // [L,H,k]
  }
  return copied.to(at::kDouble).mean(-1);
}

double rouge1_recall(const std::vector<std::string>& wanted, const std::vector<std::string>& said) {
  if (wanted.empty()) return 0;
  std::map<std::string, int64_t> left;
  for (const auto& word : said) ++left[word];
  int64_t found = 0;
  for (const auto& word : wanted)
    if (auto& words = left[word]; words > 0) --words, ++found;
  return 100 * static_cast<double>(found) / static_cast<double>(wanted.size());
}

Tensor mean_retrieval_score(const std::vector<Retrieval>& runs) {
  TORCH_CHECK(!runs.empty(), "no runs");
  const auto& first = runs.front().heaviest;
  auto sum = at::zeros({first.size(1), first.size(2)}, at::kDouble);
  double counted = 0;
  for (const auto& run : runs)
    if (rouge1_recall(run.wanted, run.said) > kLeastRecall) {
      sum += retrieval_score(run);
      counted += 1;
    }
  return sum / counted;
}

}  // namespace headlab
