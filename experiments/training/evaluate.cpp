#include "experiments/training/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "core/torch.h"

namespace headlab {

double Evaluation::mean(const std::string& name) const {
  const auto found =
      std::find_if(means.begin(), means.end(), [&](const Mean& mean) { return mean.name == name; });
  if (found == means.end()) throw std::out_of_range("the task has no metric '" + name + "'");
  return found->value;
}

std::optional<double> Evaluation::validation_loss() const {
  return split == Split::kValidation ? std::optional(loss()) : std::nullopt;
}

std::string to_text(const Evaluation::Mean& mean) {
  return fmt::format("{} {:.4f}{}", mean.name, mean.value,
                     mean.units == "1" ? "" : " " + mean.units);
}

int column_width(const TaskMetric& metric, int least) {
  return std::max(least, static_cast<int>(metric.name.size()));
}

std::string means_text(const Evaluation& evaluation) {
  std::vector<std::string> texts;
  for (const auto& mean : evaluation.means) texts.push_back(to_text(mean));
  return fmt::format("{}", fmt::join(texts, ", "));
}

void for_each_batch(const DataSource& data, Split split, int64_t batch, int64_t most_batches,
                    const at::Device& device,
                    const std::function<void(const Batch& batch)>& visit) {
  int64_t examples = data.examples(split);
  if (most_batches > 0) examples = std::min(examples, most_batches * batch);
  for (int64_t first = 0; first < examples; first += batch)
    visit(data.eval_batch(split, first, std::min(batch, examples - first)).to(device));
}

Evaluation evaluate(Model& model, const DataSource& data, Split split, int64_t batch,
                    int64_t most_batches, const Compute& compute) {
  torch::InferenceMode inference;
  const bool was_training = model.is_training();
  model.eval();
  Evaluation result{.split = split};
  const Task& task = data.task();
  const auto counts = at::TensorOptions(at::kDouble).device(compute.device);
  auto sums = at::zeros({std::ssize(task.metrics())}, counts), scored = at::zeros({}, counts);
  for_each_batch(data, split, batch, most_batches, compute.device, [&](const Batch& b) {
    sums += task.sums(model.forward(b, {.backend = compute.backend}).logits, b);
    scored += task.scored(b);
    result.examples += b.examples();
  });
  result.tokens = static_cast<int64_t>(scored.item<double>());
  const auto means = (sums / scored.clamp_min(1)).cpu();
  for (const auto& metric : task.metrics())
    result.means.push_back({metric, means[std::ssize(result.means)].item<double>()});
  model.train(was_training);
  return result;
}

}  // namespace headlab
