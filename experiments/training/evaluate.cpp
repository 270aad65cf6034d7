#include "experiments/training/evaluate.h"

#include "core/torch.h"

namespace headlab {

void for_each_batch(const DataSource& data, Split split, int64_t batch, int64_t most_batches,
                    const std::function<void(const Batch& batch)>& visit) {
  int64_t examples = data.examples(split);
  if (most_batches > 0) examples = std::min(examples, most_batches * batch);
  for (int64_t first = 0; first < examples; first += batch)
    visit(data.eval_batch(split, first, std::min(batch, examples - first)));
}

Evaluation evaluate(Model& model, const DataSource& data, Split split, int64_t batch,
                    int64_t most_batches, const at::Device& device) {
  torch::InferenceMode inference;
  const bool was_training = model.is_training();
  model.eval();
  Evaluation result;
  auto loss = at::zeros({}, at::TensorOptions(at::kDouble).device(device));
  auto right = loss.clone(), scored = loss.clone();
  for_each_batch(data, split, batch, most_batches, [&](const Batch& b) {
    const auto targets = b.targets.to(device);
    const auto logits = model.forward(b.ids.to(device), {}).logits;  // [B,T,V]
    loss += cross_entropy_sum(logits, targets).to(at::kDouble);
    right += ((logits.argmax(-1) == targets) & (targets >= 0)).sum();
    scored += scored_targets(targets);
    result.examples += b.ids.size(0);
  });
  result.tokens = static_cast<int64_t>(scored.item<double>());
  if (result.tokens > 0) {
    result.loss = loss.item<double>() / static_cast<double>(result.tokens);
    result.accuracy = right.item<double>() / static_cast<double>(result.tokens);
  }
  model.train(was_training);
  return result;
}

}  // namespace headlab
