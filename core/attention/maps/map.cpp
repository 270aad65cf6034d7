#include "core/attention/maps/map.h"

#include <limits>

#include "core/attention/attend.h"
#include "core/attention/call/observer.h"
#include "core/kernels/compose_rows.h"
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

bool Map::is_softmax() const {
  const auto* softmax = as_softmax();
  return softmax == this && !softmax->sink().defined();
}

Tensor some_of_heads(const Tensor& by_head, int64_t first, int64_t count) {
  return by_head.defined() && by_head.size(0) > 1 ? by_head.narrow(0, first, count) : by_head;
}

Tensor query_places(const AttentionCall& call, int64_t T, const at::Device& device) {
  if (call.row_places.defined()) return call.row_places;
  return at::arange(call.first_place, call.first_place + T,
                    at::TensorOptions(device).dtype(at::kLong));
}

const MapPtr& plain_softmax() {
  static const MapPtr softmax = std::make_shared<Softmax>();
  return softmax;
}

Tensor Softmax::weights(const Tensor& z, const Tensor& allowed, const AttentionCall&) const {
  const auto a = masked_softmax(z, allowed);
  if (!sink_.defined()) return a;
  return a * share_beside_sink(log_sum_exp(z, allowed), sink_).unsqueeze(-1);
}

MapPtr Softmax::of_heads(int64_t first, int64_t count) const {
  return sink_.defined() ? std::make_shared<Softmax>(some_of_heads(sink_, first, count))
                         : shared_from_this();
}

std::optional<RowMap> Softmax::row_map(const AttentionCall&, int64_t) const {
  auto map = HEADLAB_OF_ISA(softmax_rows);
  map.number = -std::numeric_limits<double>::infinity();
#ifdef HEADLAB_CUDA
  map.cuda = softmax_on_cuda();
#endif
  return map;
}

MapPtr Softmax::with_learned(const Tensor& sink) const { return std::make_shared<Softmax>(sink); }

std::vector<Statistic> Softmax::statistics() const {
  if (!sink_.defined()) return {};
  return {head_statistic("sink_mass", "1", "weight on the sink, which has no value",
                         "mean over rows of 1 - sum_j A")};
}

void Softmax::report(const MapRows& rows, HeadObserver& observer) const {
  if (sink_.defined()) report_rows(observer, "sink_mass", 1 - rows.sums, rows.rows);
}

Tensor share_beside_sink(const Tensor& lse, const Tensor& sink) {
  constexpr double kNoKey = -1e30;  // in place of -infinity: no gradient turns NaN
  return at::sigmoid(lse.clamp_min(kNoKey) - sink.to(lse.options()).unsqueeze(-1));
}

Tensor weights_of(const Tensor& scores, const Tensor& allowed, const HeadCall& call) {
  auto own = call;  // whose biases the scores hold
  own.bias = Tensor(), own.position_bias = nullptr;
  return weights_of(scores, allowed, AttentionCall(own, scores.size(2), scores.size(3), scores));
}

Tensor weights_of(const Tensor& scores, const Tensor& allowed, const AttentionCall& call) {
  auto z = widened(scores);
  if (z.numel() == 0) return z;
  const auto& map = *call.map;
  const int64_t T = z.size(2), S = z.size(3);
  const auto offsets = map.offsets(call, S, z.options());
  if (offsets.defined()) z = z + offsets;
  auto a = map.weights(z, allowed, call);
  const auto divisors = map.row_divisors(call, T, z.options());
  if (divisors.defined()) a = a / divisors.unsqueeze(-1);
  // Equal scores would not get 1 / n in a map whose rows do not sum to 1.
  if (!call.uniform.defined() || map.rows_sum_to_one()) return a;
  auto equal = at::ones_like(z);
  if (allowed.defined()) equal = equal.masked_fill(allowed.logical_not(), 0);
  equal = equal / equal.sum(-1, /*keepdim=*/true).clamp_min(1);
  return at::where(call.uniform.view({-1, 1, 1}), equal, a);
}

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
