#include "core/attention/maps/map.h"

#include "core/attention/attend.h"
#include "core/attention/call/observer.h"
#include "core/torch.h"

namespace headlab {

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

}  // namespace headlab
