#include "core/attention/weight_map_statistics.h"

#include "core/attention/attend.h"
#include "core/torch.h"

namespace headlab {
namespace {

using Kind = WeightMap::Kind;

// The pairs and rows of a call that statistics are of.
struct Counted {
  Tensor pairs, rows;  // bool [B,H,T,S], [B,H,T]

  Counted(const MappedWeights& weights, const HeadCall& call) {
    const auto& p = weights.p;
    pairs = counted_pairs(p, allowed_keys(call.mask, p.size(2), p.size(3), p.device()), call.mask);
    if (weights.counted.defined()) pairs = pairs & weights.counted.unsqueeze(-1);
    rows = pairs.any(-1);
  }
};

void report_entmax(HeadObserver& observer, const WeightMap& map, const Tensor& p,
                   const Counted& counted) {
  const auto support = (p > 0).sum(-1), keys = counted.pairs.sum(-1);  // [B,H,T]
  const auto one = at::ones({p.size(1)}, p.options().dtype(at::kDouble));
  observer.report("alpha", map.alphas.defined() ? map.alphas.to(at::kDouble) : one * map.alpha,
                  one);
  report_rows(observer, "support", support, counted.rows);
  report_rows(observer, "support_share", support / keys.clamp_min(1).to(at::kDouble), counted.rows);
  report_rows(observer, "support_one", support == 1, counted.rows);
}

void report_sums(HeadObserver& observer, const HeadCall& call, const Tensor& p,
                 const Tensor& row_sums, const Counted& counted) {
  report_rows(observer, "row_sum", row_sums, counted.rows);
  if (call.places) report_rows(observer, "applied_first_token", p.select(3, 0), counted.rows);
  if (call.map.sink.defined()) report_rows(observer, "sink_mass", 1 - row_sums, counted.rows);
  if (call.map.kind != Kind::kSoftpick) return;
  const auto zeros = ((p == 0) & counted.pairs).sum(-1);  // [B,H,T]
  report_rows(observer, "zero_share", zeros / counted.pairs.sum(-1).clamp_min(1).to(at::kDouble),
              counted.rows);
  report_rows(observer, "zero_rows", row_sums == 0, counted.rows);
}

}  // namespace

std::vector<Statistic> map_statistics(const WeightMap& map) {
  if (map.is_softmax()) return {};
  if (map.kind == Kind::kEntmax)
    return {head_statistic("alpha", "1", "alpha of the entmax", "1: softmax, 2: sparsemax"),
            head_statistic("support", "key", "keys with weight",
                           "mean over rows of the number of a > 0"),
            head_statistic("support_share", "1", "share of the allowed keys with weight",
                           "mean over rows of the number of a > 0 over n_i"),
            head_statistic("support_one", "1", "share of rows with a single key",
                           "share of rows with one a > 0")};
  std::vector<Statistic> all{
      head_statistic("row_sum", "1", "sum of the weights of a row", "mean over rows of sum_j A"),
      head_statistic("applied_first_token", "1", "weight on the first token, as it is applied",
                     "mean over rows of A[i,0]")};
  all.back().needs_places = true;
  if (map.sink.defined())
    all.push_back(head_statistic("sink_mass", "1", "weight on the sink, which has no value",
                                 "mean over rows of 1 - sum_j A"));
  if (map.kind != Kind::kSoftpick) return all;
  all.push_back(head_statistic("zero_share", "1", "share of the allowed keys without weight",
                               "mean over rows of the number of A = 0 over n_i"));
  all.push_back(
      head_statistic("zero_rows", "1", "share of rows without weight", "share of rows of A = 0"));
  return all;
}

void observe_weights(const MappedWeights& weights, const HeadCall& call) {
  at::NoGradGuard no_grad;
  const auto& [scores, p, a, v, out, rows] = weights;
  auto& observer = *call.observer;
  ObservedMap map{.p = p, .a = a, .scores = scores, .v = v, .out = out, .counted = rows};
  map.mixed = !a.is_same(p);
  map.softmax = call.map.kind == Kind::kSoftmax;
  map.rows_sum_to_one = map.softmax || call.map.kind == Kind::kEntmax;
  const auto row_sums = call.map.rows_sum_to_one() ? Tensor() : p.sum(-1);  // [B,H,T]
  map.row_sums = row_sums;
  if (call.map.sink.defined())  // patterns are those of the softmax without it
    map.p = masked_softmax(scores, allowed_keys(call.mask, p.size(2), p.size(3), p.device()));
  observer.weights(map, call);
  if (call.map.is_softmax() || !observer.wants_statistics()) return;
  const Counted counted(weights, call);
  if (call.map.kind == Kind::kEntmax) return report_entmax(observer, call.map, p, counted);
  report_sums(observer, call, p, row_sums, counted);
}

}  // namespace headlab
