#include "experiments/analysis/maps/patterns.h"

#include <limits>

#include "core/attention/attend.h"
#include "core/torch.h"

namespace headlab {
namespace {

constexpr double kLow = -std::numeric_limits<double>::infinity();

struct Adder {
  HeadSums& sums;
  const PatternRows& rows;
  // value [B,H,T] over the counted rows for which `defined` (broadcasts to [B,H,T]) holds.
  void operator()(RowStatistic which, const Tensor& value, const Tensor& defined = {}) {
    auto counted = defined.defined() ? rows.counted & defined : rows.counted;
    auto sum = value.masked_fill(counted.logical_not(), 0).sum(at::IntArrayRef{0, 2});
    auto count = counted.sum(at::IntArrayRef{0, 2}).to(at::kDouble);
    for (int64_t h = 0; h < sums.heads; ++h)
      sums.add(h, which, sum[h].item<double>(), count[h].item<double>());
  }
  void operator()(RowMaximum which, const Tensor& value) {
    auto most = value.masked_fill(rows.counted.logical_not(), kLow).amax(at::IntArrayRef{0, 2});
    for (int64_t h = 0; h < sums.heads; ++h) sums.raise(h, which, most[h].item<double>());
  }
};

Tensor entropy(const Tensor& a) { return -at::xlogy(a, a).sum(-1); }

// Argmax offsets r [B,H,T] of the counted rows, and which examples sink into the first token.
void count_rows(HeadSums& sums, const PatternRows& rows, const Tensor& r, double sink_threshold) {
  const auto first = rows.a.select(-1, 0).contiguous(), offset = r.contiguous();
  const auto counted = rows.counted.contiguous();
  const int64_t B = r.size(0), H = r.size(1), T = r.size(2);
  for (int64_t n = 0; n < B * H; ++n) {
    const int64_t h = n % H;
    double sum = 0, count = 0;
    for (int64_t row = n * T; row < (n + 1) * T; ++row) {
      if (!counted.const_data_ptr<bool>()[row]) continue;
      sum += first.const_data_ptr<double>()[row];
      count += 1;
      sums.offsets.add(h, static_cast<int64_t>(offset.const_data_ptr<double>()[row]));
    }
    if (count == 0) continue;
    sums.examples[h] += 1;
    sums.sink_examples[h] += sum / count > sink_threshold;
  }
}

void add_places(Adder& add, const MapContext& context, const Tensor& heaviest) {
  const auto& rows = add.rows;
  const auto& a = rows.a;
  auto offset = rows.j - rows.i;     // [T,S]
  auto mean = (a * offset).sum(-1);  // [B,H,T]
  add(kMeanDistance, (a * offset.abs()).sum(-1));
  add(kSignedOffset, mean);
  add(kOffsetVariance, (a * (offset - mean.unsqueeze(-1)).square()).sum(-1));
  auto at_offset = [&](double r) { return (a * (offset == r)).sum(-1); };
  auto last = (context.key_length.defined() ? context.key_length.view({-1, 1, 1})
                                            : at::full({1, 1, 1}, a.size(3), at::kLong));
  auto place = rows.i.squeeze(1);
  add(kPrevToken, at_offset(-1), place >= 1);
  if (!context.causal) add(kNextToken, at_offset(1), place + 1 < last);
  add(kSelfToken, at_offset(0));
  add(kFirstToken, a.select(-1, 0));
  auto relative = heaviest - place;  // [B,H,T]
  add(kArgmaxDistance, relative.abs());
  count_rows(add.sums, rows, relative, context.sink_threshold);
}

void add_matches(Adder& add, const Tensor& tokens) {
  const auto& rows = add.rows;
  const int64_t T = rows.a.size(2), S = rows.a.size(3);
  auto mine = tokens.narrow(1, S - T, T).unsqueeze(2);  // [B,T,1]
  auto earlier = rows.j < rows.i;                       // [T,S]
  auto same = (mine == tokens.unsqueeze(1)) & earlier;  // [B,T,S]
  auto previous =
      at::cat({at::full({tokens.size(0), 1}, -1, at::kLong), tokens.narrow(1, 0, S - 1)}, 1);
  auto after = (mine == previous.unsqueeze(1)) & (rows.j <= rows.i) & (rows.j > 0);
  add(kDuplicateToken, (rows.a * same.unsqueeze(1)).sum(-1), same.any(-1).unsqueeze(1));
  add(kInduction, (rows.a * after.unsqueeze(1)).sum(-1), after.any(-1).unsqueeze(1));
}

void add_divergence(HeadSums& sums, const PatternRows& rows) {
  const int64_t H = rows.a.size(1);
  for (int64_t h = 0; h < H; ++h)
    for (int64_t g = 0; g < H; ++g) {
      auto p = rows.a.select(1, h), q = rows.a.select(1, g);  // [B,T,S]
      auto js = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2;
      auto both = rows.counted.select(1, h) & rows.counted.select(1, g);
      sums.js[h * H + g] += js.masked_fill(both.logical_not(), 0).sum().item<double>();
      sums.js_counts[h * H + g] += both.sum().item<double>();
    }
}

}  // namespace

PatternRows pattern_rows(const Tensor& a, const MapContext& context) {
  const int64_t T = a.size(2), S = a.size(3);
  PatternRows rows;
  AttentionMask mask;
  mask.allowed = context.allowed;
  mask.key_length = context.key_length;
  mask.causal = context.causal;
  auto allowed = allowed_keys(mask, T, S, a.device());
  rows.allowed = (allowed.defined() ? allowed : at::ones({1}, at::kBool)).expand(a.sizes());
  rows.a = a.to(at::kDouble).masked_fill(rows.allowed.logical_not(), 0);
  rows.keys = rows.allowed.sum(-1).to(at::kDouble);
  rows.counted = rows.keys >= 1;
  if (const auto real = within_length(context.query_length, T, a.device()); real.defined())
    rows.counted = rows.counted & real.unsqueeze(1);  // [B,1,T]
  rows.i = at::arange(context.cross ? 0 : S - T, context.cross ? T : S, at::kDouble).unsqueeze(1);
  rows.j = at::arange(S, at::kDouble);
  return rows;
}

void add_patterns(HeadSums& sums, const Tensor& a, const MapContext& context) {
  at::NoGradGuard no_grad;
  const PatternRows rows = pattern_rows(a, context);
  Adder add{sums, rows};
  auto h = entropy(rows.a);                   // [B,H,T]
  auto [largest, heaviest] = rows.a.max(-1);  // ties: the lowest key
  add(kEntropy, h);
  add(kEntropyNormalized, h / rows.keys.log(), rows.keys >= 2);
  add(kMaxWeight, largest);
  add(kParticipationRatio, rows.a.square().sum(-1).reciprocal());
  auto candidates = rows.allowed;
  if (context.classes.defined()) {
    auto classes = context.classes.unsqueeze(1).unsqueeze(1);  // [B,1,1,S]
    add(kClsMass, (rows.a * (classes == 1)).sum(-1));
    add(kSepMass, (rows.a * (classes == 2)).sum(-1));
    add(kPunctuationMass, (rows.a * (classes == 3)).sum(-1));
    candidates = candidates & (classes != 2);
  }
  add(kConfidence, rows.a.masked_fill(candidates.logical_not(), -1).amax(-1), candidates.any(-1));
  if (context.value_norm.defined())
    add(kValueWeightedNorm, (rows.a * context.value_norm.to(at::kDouble).unsqueeze(2)).sum(-1));
  if (context.output.defined())
    add(kOutputNorm, context.output.to(at::kDouble).square().sum(-1).sqrt());
  if (context.scores.defined()) {
    auto z = context.scores.to(at::kDouble).masked_fill(rows.allowed.logical_not(), kLow);
    add(kLse, z.logsumexp(-1));
    add(kMaxLogit, z.amax(-1));
  }
  if (!context.cross) add_places(add, context, heaviest.to(at::kDouble));
  if (!context.cross && context.tokens.defined()) add_matches(add, context.tokens);
  if (context.divergence) add_divergence(sums, rows);
}

Tensor value_norms(const Tensor& v, const Tensor& output_weight) {
  const int64_t H = v.size(1), e = v.size(3);
  auto w = output_weight.view({output_weight.size(0), H, e}).permute({1, 2, 0});  // [H,e,D]
  return at::matmul(v, w).norm(2, -1);                                            // [B,H,S]
}

}  // namespace headlab
