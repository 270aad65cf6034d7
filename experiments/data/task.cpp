#include "experiments/data/task.h"

#include "core/torch.h"

namespace headlab {
namespace {

class Prediction : public Task {
 public:
  const std::vector<TaskMetric>& metrics() const override {
    static const std::vector<TaskMetric> all{
        {"loss", "nat", "loss", "mean of -ln p over the scored targets"},
        {"accuracy", "1", "accuracy", "share of scored targets that are the likeliest prediction"}};
    return all;
  }
  Tensor is_scored(const Batch& batch) const override { return batch.targets.ge(0); }
  Tensor loss(const Tensor& logits, const Batch& batch, double smoothing) const override {
    return cross_entropy_sum(logits, batch.targets, smoothing);
  }
  Tensor per_target(const Tensor& logits, const Batch& batch) const override {
    at::NoGradGuard no_grad;
    const auto type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto& targets = batch.targets;
    const auto ln_p = at::log_softmax(logits, -1, type)
                          .gather(-1, targets.clamp_min(0).unsqueeze(-1))
                          .squeeze(-1);  // [B,T]
    const auto right = logits.argmax(-1) == targets;
    return at::stack({-ln_p, right.to(type)}).masked_fill(is_scored(batch).logical_not(), 0);
  }
  // Summed as the loss of a training is, in the type of the logits.
  Tensor sums(const Tensor& logits, const Batch& batch) const override {
    at::NoGradGuard no_grad;
    const auto& targets = batch.targets;
    const auto right = (logits.argmax(-1) == targets) & (targets >= 0);  // [B,T]
    return at::stack(
        {cross_entropy_sum(logits, targets).to(at::kDouble), right.sum().to(at::kDouble)});
  }
};

}  // namespace

Tensor Task::scored(const Batch& batch) const { return is_scored(batch).sum(); }

Tensor Task::sums(const Tensor& logits, const Batch& batch) const {
  return per_target(logits, batch).flatten(1).sum(1, /*keepdim=*/false, at::kDouble);  // [metrics]
}

const Task& prediction_task() {
  static const Prediction task;
  return task;
}

Tensor cross_entropy_sum(const Tensor& logits, const Tensor& targets, double smoothing) {
  const auto type = logits.scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  const auto rows = (half ? logits.to(at::kFloat) : logits).flatten(0, -2);  // [B*T,V]
  const auto wanted = targets.flatten();                                     // [B*T]
  // torch ignores one value only, here every negative one is.
  return at::cross_entropy_loss(rows, wanted.masked_fill(wanted < 0, kIgnored), {},
                                at::Reduction::Sum, kIgnored, smoothing);
}

Tensor scored_targets(const Tensor& targets) { return targets.ge(0).sum(); }

}  // namespace headlab
