#include "experiments/measuring/change_of_outputs.h"

#include <cmath>

#include "core/attention/call/masks.h"
#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {

namespace {

double total(const Tensor& values, const Tensor& where) {
  return values.masked_fill(where.logical_not(), 0).sum().item<double>();
}

}  // namespace

OutputChangeSums::OutputChangeSums(const Task& task)
    : task_(task), metrics_(task.metrics().size()) {}

void OutputChangeSums::add(const Pass& full, const Pass& changed, const Batch& batch) {
  at::NoGradGuard no_grad;
  const auto y = full.y.to(at::kDouble), other = changed.y.to(at::kDouble);
  const auto distance = (other - y).square().sum(-1), size = y.square().sum(-1);  // [N,T]
  auto valid = at::ones_like(size, at::kBool);                                    // [N,T]
  if (batch.length.defined()) valid = within_length(batch.length, size.size(1), size.device());
  square_ += total(distance, valid);
  full_square_ += total(size, valid);
  norms_ += total(distance.sqrt(), valid);
  cosine_ += total((y * other).sum(-1) / (size * other.square().sum(-1)).sqrt(), valid);
  positions_ += valid.sum().item<double>();

  add_metrics(full, changed, batch, valid);
  if (!task_.predicts()) return;
  const auto type = at_least_float(full.logits);
  const auto p = at::log_softmax(full.logits, -1, type),
             q = at::log_softmax(changed.logits, -1, type);
  // Where p is 0 nothing is added, whatever q is; and no sum is below 0 but by rounding.
  const auto terms = (p.exp() * (p - q)).masked_fill(p.isneginf(), 0);
  const auto kl = terms.sum(-1).to(at::kDouble).clamp_min(0);  // [N,T], or [N]
  const bool by_position = kl.dim() == 2;
  kl_ += total(kl, by_position ? valid : at::ones_like(kl, at::kBool));
  predictions_ += by_position ? valid.sum().item<double>() : static_cast<double>(kl.numel());
}

void OutputChangeSums::add_metrics(const Pass& full, const Pass& changed, const Batch& batch,
                                   const Tensor& valid) {
  auto scored = task_.is_scored(batch);  // [N,T], or [N]
  if (scored.dim() == 2) scored = scored & valid;
  const auto change = task_.per_target(changed.logits, batch) -
                      task_.per_target(full.logits, batch);  // [metrics,N,T], or [metrics,N]
  for (size_t m = 0; m < metrics_.size(); ++m)
    metrics_[m] += total(change[static_cast<int64_t>(m)].to(at::kDouble), scored);
  scored_ += scored.sum().item<double>();

  const auto of_example = [](const Tensor& values) {
    return values.view({values.size(0), -1}).sum(1).to(at::kCPU, at::kDouble);  // [N]
  };
  const auto counts = of_example(scored);
  const auto means =
      of_example(change[0].to(at::kDouble).masked_fill(scored.logical_not(), 0)) / counts;
  for (int64_t n = 0; n < means.size(0); ++n)
    if (counts[n].item<double>() > 0) examples_.push_back(means[n].item<double>());
}

std::map<std::string, double> OutputChangeSums::values() const {
  std::map<std::string, double> values{{"l2", std::sqrt(square_)},
                                       {"l2_per_position", norms_ / positions_},
                                       {"relative", std::sqrt(square_ / full_square_)},
                                       {"cosine", cosine_ / positions_},
                                       {"kl", kl_ / predictions_}};
  for (size_t m = 0; m < metrics_.size(); ++m)
    values[change_name(task_.metrics()[m])] = metrics_[m] / scored_;
  return values;
}

std::string change_name(const TaskMetric& metric) { return metric.name + "_delta"; }

std::vector<LogVariable> output_change_variables(const Task& task) {
  std::vector<LogVariable> all{
      {"l2", "1", "change of the output",
       "Frobenius norm of the difference of the hidden states behind the last block, over all "
       "valid positions"},
      {"l2_per_position", "1", "mean change of the output at a position",
       "mean over valid positions of the norm of the difference of the hidden states"},
      {"relative", "1", "relative change of the output",
       "l2 over the Frobenius norm of the full model's hidden states"},
      {"cosine", "1", "cosine of full and changed output",
       "mean over valid positions of the cosine of the hidden states"},
      {"kl", "nat", "divergence of the predictions",
       "mean over valid positions of KL(full || changed) of the softmax of the logits"}};
  for (const auto& metric : task.metrics())
    all.push_back({change_name(metric), metric.units, "change of the " + metric.long_name,
                   "changed minus full model: " + metric.formula});
  return all;
}

}  // namespace headlab
