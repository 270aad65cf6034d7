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
  const Task& task = data.task();
  const auto counts = at::TensorOptions(at::kDouble).device(device);
  auto sums = at::zeros({std::ssize(task.metrics())}, counts), scored = at::zeros({}, counts);
  for_each_batch(data, split, batch, most_batches, [&](const Batch& on_host) {
    const auto b = on_host.to(device);
    sums += task.sums(model.forward(b, {}).logits, b);
    scored += task.scored(b);
    result.examples += b.examples();
  });
  result.tokens = static_cast<int64_t>(scored.item<double>());
  if (result.tokens > 0) {
    const auto means = (sums / scored).cpu();
    result.loss = means[0].item<double>();
    result.accuracy = means[1].item<double>();
  }
  model.train(was_training);
  return result;
}

}  // namespace headlab
