#include "core/attention/weight_map.h"

#include <cmath>
#include <limits>

#include "core/attention/attend.h"
#include "core/attention/cache.h"
#include "core/attention/entmax.h"
#include "core/torch.h"

namespace headlab {
namespace {

Tensor some(const Tensor& of_heads, int64_t first, int64_t count) {
  return of_heads.defined() && of_heads.size(0) > 1 ? of_heads.narrow(0, first, count) : of_heads;
}

Tensor hidden_as(const Tensor& x, const Tensor& allowed, double value) {
  return allowed.defined() ? x.masked_fill(allowed.logical_not(), value) : x;
}

Tensor by_head(const Tensor& of_head, const Tensor& z) {  // [H] -> [H,1,1]
  return of_head.to(z.options()).view({-1, 1, 1});
}

Tensor sigmoid(const Tensor& z, const Tensor& allowed, const HeadCall& call) {
  const int64_t T = z.size(2), S = z.size(3);
  const auto of_examples = offset_by_example(call, S, z.options());
  const double offset = call.map.offset.value_or(-std::log(static_cast<double>(S)));
  const auto biased = of_examples.defined() ? z + of_examples : z + offset;
  const auto a = hidden_as(at::sigmoid(biased), allowed, 0);
  const auto divisors = row_divisors(call, T, S, z);
  return divisors.defined() ? a / divisors.unsqueeze(-1) : a;
}

// By the authors' stable form: with m = max(max_j z, 0) the sums are taken e^-m times, eps is not,
// so that m has a gradient of that size.
Tensor softpick(const Tensor& z, const Tensor& allowed, double eps) {
  const auto seen = hidden_as(z, allowed, std::numeric_limits<float>::lowest());
  const auto m = seen.amax(-1, /*keepdim=*/true).clamp_min(0);            // [B,H,T,1]
  const auto e = hidden_as(at::exp(seen - m) - at::exp(-m), allowed, 0);  // [B,H,T,S]
  return at::relu(e) / (e.abs().sum(-1, /*keepdim=*/true) + eps);
}

Tensor mapped(const Tensor& z, const Tensor& allowed, const HeadCall& call) {
  const auto& map = call.map;
  if (z.numel() == 0) return z;
  switch (map.kind) {
    case WeightMap::Kind::kSoftmax:
      if (!map.sink.defined()) return masked_softmax(z, allowed);
      return masked_softmax(z, allowed) *
             share_beside_sink(log_sum_exp(z, allowed), map.sink).unsqueeze(-1);
    case WeightMap::Kind::kEntmax:
      return map.alphas.defined() ? entmax(z, allowed, by_head(map.alphas, z), call.backend)
                                  : entmax(z, allowed, map.alpha, call.backend);
    case WeightMap::Kind::kSigmoid:
      return sigmoid(z, allowed, call);
    case WeightMap::Kind::kSoftpick:
      return softpick(z, allowed, map.eps);
  }
  return z;
}

}  // namespace

WeightMap WeightMap::of_heads(int64_t first, int64_t count) const {
  auto part = *this;
  part.sink = some(sink, first, count);
  part.alphas = some(alphas, first, count);
  return part;
}

Tensor offset_by_example(const HeadCall& call, int64_t S, const at::TensorOptions& options) {
  if (call.map.kind != WeightMap::Kind::kSigmoid || call.map.offset) return {};
  // Masks count as the authors' code counts them, which knows no lengths: the keys of the call.
  const auto seen = within_length(call.mask.key_length, S, options.device());  // [B,S]
  if (!seen.defined()) return {};
  return -seen.sum(1).clamp_min(1).to(options.dtype()).log().view({-1, 1, 1, 1});
}

Tensor row_divisors(const HeadCall& call, int64_t T, int64_t S, const Tensor& like) {
  if (call.map.divisor == WeightMap::Divisor::kNone) return {};
  auto places = call.row_places;
  if (!places.defined()) {
    // A window lets go of keys that stood in front.
    const int64_t first = call.cache ? call.cache->length() : call.places ? S - T : 0;
    places = at::arange(first, first + T, like.options().dtype(at::kLong));
  }
  const auto seen = (places + 1).to(like.scalar_type());
  return call.map.divisor == WeightMap::Divisor::kSqrt ? seen.sqrt() : seen;
}

Tensor share_beside_sink(const Tensor& lse, const Tensor& sink) {
  constexpr double kNoKey = -1e30;  // in place of -infinity: no gradient turns NaN
  return at::sigmoid(lse.clamp_min(kNoKey) - sink.to(lse.options()).unsqueeze(-1));
}

Tensor weights_of(const Tensor& scores, const Tensor& allowed, const HeadCall& call) {
  const auto z = widened(scores);
  const auto a = mapped(z, allowed, call);
  // Softmax and entmax give equal scores equal weights; the others would not let them sum to 1.
  if (!call.uniform.defined() || call.map.rows_sum_to_one()) return a;
  auto equal = hidden_as(at::ones_like(z), allowed, 0);
  equal = equal / equal.sum(-1, /*keepdim=*/true).clamp_min(1);
  return at::where(call.uniform.view({-1, 1, 1}), equal, a);
}

}  // namespace headlab
