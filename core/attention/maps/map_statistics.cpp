#include "core/attention/maps/map_statistics.h"

#include "core/attention/attend.h"
#include "core/torch.h"

namespace headlab {
namespace {

// The rows and pairs of a call that statistics are of.
MapRows rows_of(const MappedWeights& weights, const Tensor& sums, const HeadCall& call) {
  const auto& p = weights.p;
  const auto allowed = allowed_keys(call.mask, p.size(2), p.size(3), p.device());
  auto pairs = counted_pairs(p, allowed, call.mask);  // [B,H,T,S]
  if (weights.counted.defined()) pairs = pairs & weights.counted.unsqueeze(-1);
  return {.weights = p, .sums = sums, .pairs = pairs, .rows = pairs.any(-1)};
}

}  // namespace

std::vector<Statistic> map_statistics(const Map& map) {
  if (map.is_softmax()) return {};
  std::vector<Statistic> all;
  if (!map.rows_sum_to_one()) {
    all = {
        head_statistic("row_sum", "1", "sum of the weights of a row", "mean over rows of sum_j A"),
        head_statistic("applied_first_token", "1", "weight on the first token, as it is applied",
                       "mean over rows of A[i,0]")};
    all.back().needs_places = true;
  }
  const auto own = map.statistics();
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

void observe_weights(const MappedWeights& weights, const HeadCall& call) {
  at::NoGradGuard no_grad;
  const auto& [scores, p, a, v, out, counted] = weights;
  auto& observer = *call.observer;
  ObservedMap map{.p = p, .a = a, .scores = scores, .v = v, .out = out, .counted = counted};
  map.mixed = !a.is_same(p);
  map.softmax = call.map->as_softmax() == call.map.get();
  map.rows_sum_to_one = map.softmax || call.map->rows_sum_to_one();
  const auto sums = call.map->rows_sum_to_one() ? Tensor() : p.sum(-1);  // [B,H,T]
  map.row_sums = sums;
  if (map.softmax && sums.defined())  // patterns are those of the softmax without its sink
    map.p = masked_softmax(scores, allowed_keys(call.mask, p.size(2), p.size(3), p.device()));
  observer.weights(map, call);
  if (call.map->is_softmax() || !observer.wants_statistics()) return;
  const auto rows = rows_of(weights, sums, call);
  if (sums.defined()) {
    report_rows(observer, "row_sum", sums, rows.rows);
    if (call.places) report_rows(observer, "applied_first_token", p.select(3, 0), rows.rows);
  }
  call.map->report(rows, observer);
}

void report_rows(HeadObserver& observer, const char* name, const Tensor& of_row,
                 const Tensor& counted) {
  const auto of_heads = [](const Tensor& t) { return t.sum(at::IntArrayRef({0, 2})); };  // [H]
  observer.report(name, of_heads(at::where(counted, of_row.to(at::kDouble), 0.0)),
                  of_heads(counted));
}

}  // namespace headlab
