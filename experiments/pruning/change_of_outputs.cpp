#include "experiments/pruning/change_of_outputs.h"

#include <cmath>

#include "core/attention/random.h"
#include "core/torch.h"

namespace headlab {

void OutputChangeSums::add(const Pass& full, const Pass& changed, const Tensor& targets,
                           const Tensor& length) {
  at::NoGradGuard no_grad;
  auto valid = at::ones_like(targets, at::kBool);  // [N,T]
  if (length.defined()) valid = within_length(length, targets.size(1), targets.device());
  const auto scored = valid & (targets >= 0);
  const auto total = [](const Tensor& values, const Tensor& where) {
    return values.masked_fill(where.logical_not(), 0).sum().item<double>();
  };
  const auto y = full.y.to(at::kDouble), other = changed.y.to(at::kDouble);
  const auto distance = (other - y).square().sum(-1), size = y.square().sum(-1);  // [N,T]
  square_ += total(distance, valid);
  full_square_ += total(size, valid);
  norms_ += total(distance.sqrt(), valid);
  cosine_ += total((y * other).sum(-1) / (size * other.square().sum(-1)).sqrt(), valid);
  positions_ += valid.sum().item<double>();

  const auto type = full.logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto p = at::log_softmax(full.logits, -1, type),
             q = at::log_softmax(changed.logits, -1, type);
  kl_ += total((p.exp() * (p - q)).sum(-1).to(at::kDouble), valid);
  const auto wanted = targets.clamp_min(0).unsqueeze(-1);
  const auto loss = (p - q).gather(-1, wanted).squeeze(-1).to(at::kDouble);  // [N,T]
  loss_ += total(loss, scored);
  const auto hits = [&](const Tensor& logits) {
    return (logits.argmax(-1) == targets).to(at::kDouble);
  };
  right_ += total(hits(changed.logits) - hits(full.logits), scored);
  scored_ += scored.sum().item<double>();

  const auto counts = scored.sum(1).to(at::kCPU, at::kDouble);
  const auto means = (loss.masked_fill(scored.logical_not(), 0).sum(1).to(at::kCPU) / counts);
  for (int64_t n = 0; n < means.size(0); ++n)
    if (counts[n].item<double>() > 0) examples_.push_back(means[n].item<double>());
}

std::map<std::string, double> OutputChangeSums::values() const {
  return {{"l2", std::sqrt(square_)},
          {"l2_per_position", norms_ / positions_},
          {"relative", std::sqrt(square_ / full_square_)},
          {"cosine", cosine_ / positions_},
          {"kl", kl_ / positions_},
          {"loss_delta", loss_ / scored_},
          {"accuracy_delta", right_ / scored_}};
}

const std::vector<LogVariable>& output_change_variables() {
  static const std::vector<LogVariable> all{
      {"l2", "1", "change of the output",
       "Frobenius norm of the difference of the hidden states behind the last block, over all "
       "valid "
       "positions"},
      {"l2_per_position", "1", "mean change of the output at a position",
       "mean over valid positions of the norm of the difference of the hidden states"},
      {"relative", "1", "relative change of the output",
       "l2 over the Frobenius norm of the full model's hidden states"},
      {"cosine", "1", "cosine of full and changed output",
       "mean over valid positions of the cosine of the hidden states"},
      {"kl", "nat", "divergence of the predictions",
       "mean over valid positions of KL(full || changed) of the softmax of the logits"},
      {"loss_delta", "nat", "change of the loss",
       "mean over scored tokens of changed minus full cross entropy"},
      {"accuracy_delta", "1", "change of the accuracy",
       "share of scored tokens predicted right, changed minus full"},
      {"p_value", "1", "chance of such a change of the loss",
       "paired bootstrap over examples: min(1, 2 min(share of resampled means <= 0, share >= 0))"}};
  return all;
}

Bootstrap bootstrap(const Tensor& changes, const Tensor& resample) {
  const auto means = changes.to(at::kDouble).index({resample}).mean(1);  // [R]
  const auto share = [&](const Tensor& where) {
    return where.to(at::kDouble).mean().item<double>();
  };
  return {means.mean().item<double>(),
          std::min(1.0, 2 * std::min(share(means <= 0), share(means >= 0)))};
}

Tensor draw_resamples(int64_t resamples, int64_t examples, uint64_t seed) {
  auto draws = at::empty({resamples, examples}, at::kLong);
  const CounterRng rng{.seed = seed};
  auto* to = draws.data_ptr<int64_t>();
  for (int64_t n = 0; n < draws.numel(); ++n)
    to[n] = static_cast<int64_t>(rng.bits(CounterRng::kSampling, n) % examples);
  return draws;
}

double p_value(const std::vector<double>& changes, uint64_t seed) {
  if (changes.empty()) return std::numeric_limits<double>::quiet_NaN();
  return bootstrap(at::tensor(changes, at::kDouble),
                   draw_resamples(1000, std::ssize(changes), seed))
      .p;
}

}  // namespace headlab
