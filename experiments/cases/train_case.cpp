#include "experiments/cases/train_case.h"

#include <fmt/format.h>

#include "core/torch.h"
#include "experiments/runs/experiment.h"

namespace headlab {
namespace {

// nanoGPT's GPTConfig.
struct NanoModel : Block {
  int64_t n_layer = 12, n_head = 12, n_embd = 768, block_size = 1024, vocab_size = 50304;
  bool bias = true;
  double dropout = 0;

  void visit(Fields& f) override {
    f("n_layer", n_layer, "blocks", at_least(1));
    f("n_head", n_head, "heads", at_least(1));
    f("n_embd", n_embd, "width", at_least(1));
    f("block_size", block_size, "context", at_least(1));
    f("vocab_size", vocab_size, "vocabulary", at_least(1));
    f("bias", bias, "biases of every linear layer and norm");
    f("dropout", dropout, "must be 0: its draws are not in the file", between(0, 0));
  }
  std::string decoder() const {
    return fmt::format(
        "{{layers: {}, heads: {}, d_model: {}, bias: {}, attention: {{kind: mha, bias: {}}}}}",
        n_layer, n_head, n_embd, bias, bias);
  }
};

// nanoGPT's train.py.
struct NanoTrain : Block {
  double learning_rate = 6e-4, min_lr = 6e-5, weight_decay = 0.1;
  double beta1 = 0.9, beta2 = 0.95, grad_clip = 1;
  int64_t warmup_iters = 2000, lr_decay_iters = 600000, gradient_accumulation_steps = 1;

  void visit(Fields& f) override {
    f("learning_rate", learning_rate, "peak rate", above(0));
    f("min_lr", min_lr, "last rate", at_least(0));
    f("warmup_iters", warmup_iters, "updates of warm-up", at_least(0));
    f("lr_decay_iters", lr_decay_iters, "updates until min_lr", at_least(1));
    f("weight_decay", weight_decay, "decay of matrices", at_least(0));
    f("beta1", beta1, "of AdamW", from_below(0, 1));
    f("beta2", beta2, "of AdamW", from_below(0, 1));
    f("grad_clip", grad_clip, "largest norm of the gradients; 0: any", at_least(0));
    f("gradient_accumulation_steps", gradient_accumulation_steps, "micro-batches", at_least(1));
  }
  TrainOptions options() const {
    TrainOptions train;
    train.lr = learning_rate;
    train.min_lr = min_lr;
    train.warmup = warmup_iters;
    train.decay_steps = lr_decay_iters;
    train.weight_decay = weight_decay;
    train.betas = {beta1, beta2};
    train.clip = grad_clip;
    return train;
  }
};

// Settings that are not of the file's weights, before anything of their size is made.
void check_weights(const CaseFile& file, const NanoModel& model) {
  const auto& embedding = file.at("w.embed.token.weight");
  if (embedding.sizes() != at::IntArrayRef{model.vocab_size, model.n_embd})
    file.refuse(fmt::format("w.embed.token.weight is {}, vocab_size and n_embd are {} and {}",
                            c10::str(embedding.sizes()), model.vocab_size, model.n_embd));
  const auto width = static_cast<double>(model.n_embd);
  file.require_weights(static_cast<double>(model.n_layer) * width * width,
                       fmt::format("{} layers of n_embd {}", model.n_layer, model.n_embd));
  file.require_weights(static_cast<double>(model.block_size) * width,
                       fmt::format("{} positions of n_embd {}", model.block_size, model.n_embd));
}

}  // namespace

TrainCase::TrainCase(const CaseFile& file, const Compute& compute,
                     std::optional<at::ScalarType> type)
    : compute_(compute), expected_(file.expected) {
  of_case(file.name, [&] { take_all(file, type); });
}

void TrainCase::take_all(const CaseFile& file, std::optional<at::ScalarType> type) {
  if (const auto format = file.metadata.find("headlab_train");
      format == file.metadata.end() || format->second != "1")
    file.refuse("not a training file: its metadata has no headlab_train = 1");
  ids_ = file.at("in.ids");
  targets_ = file.at("in.targets");
  if (ids_.dim() != 4 || ids_.numel() == 0 || ids_.sizes() != targets_.sizes())
    file.refuse("in.ids and in.targets must be [step, micro-batch, B, T]");
  type_ = type.value_or(file.at("w.embed.token.weight").scalar_type());
  const bool narrower = type_ == at::kFloat && file.metadata.contains("rtol_float32");
  const std::string suffix = narrower ? "_float32" : "";
  tolerance_ = {file.number("rtol" + suffix), file.number("atol" + suffix)};
  build(file);
  auto weights = file.tensors;
  weights.erase("in.ids"), weights.erase("in.targets");
  take_weights(file, std::move(weights));
}

void TrainCase::build(const CaseFile& file) {
  NanoModel nano;
  file.read(nano);
  NanoTrain train;
  file.read(train, "train");
  check_weights(file, nano);
  if (train.gradient_accumulation_steps != ids_.size(1))
    file.refuse(fmt::format("in.ids has {} micro-batches, the settings say {}", ids_.size(1),
                            train.gradient_accumulation_steps));

  const auto& kind = model_kind("decoder");
  const auto options = kind.options();
  read_config(*options, parse_config(nano.decoder(), file.name + " (config)"));
  model_ = kind.make(*options, {.vocabulary = nano.vocab_size, .context = nano.block_size});
  model_->to(compute_.device, type_);
  const auto settings = train.options();
  updater_ = std::make_unique<Updater>(
      model_, schedule_of(settings, nano.n_embd, 0), adamw_of(settings),
      Updater::Settings{.clip = settings.clip, .backend = compute_.backend});
}

void TrainCase::take_weights(const CaseFile& file, NamedTensors tensors) {
  at::NoGradGuard no_grad;
  for (auto& item : model_->named_parameters()) {
    const auto& weight = file.at("w." + item.key());
    if (weight.sizes() != item.value().sizes())
      file.refuse(fmt::format("w.{} is {}, the model wants {}", item.key(),
                              c10::str(weight.sizes()), c10::str(item.value().sizes())));
    item.value().copy_(weight);
    tensors.erase("w." + item.key());
  }
  for (const auto& [name, tensor] : tensors)
    file.refuse("the model does not know the tensor " + name);
}

Batch TrainCase::micro_batch(int64_t step, int64_t part) const {
  return {ids_[step][part], targets_[step][part]};
}

Tensor TrainCase::logits() const {
  at::NoGradGuard no_grad;
  return model_->forward(micro_batch(0, 0).to(compute_.device), {.backend = compute_.backend})
      .logits.to(at::kCPU, /*non_blocking=*/false,
                 /*copy=*/true);
}

NamedTensors TrainCase::compute() {
  NamedTensors computed{{"out.logits.first", logits()}};
  const int64_t steps = ids_.size(0);
  std::vector<double> losses, norms, rates;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<Batch> batches;
    for (int64_t part = 0; part < ids_.size(1); ++part) batches.push_back(micro_batch(step, part));
    losses.push_back(updater_->add_gradients(step, batches).nll.item<double>());
    if (step == 0)
      for (const auto& item : model_->named_parameters())
        computed["grad." + item.key()] = item.value().grad().to(at::kCPU, false, /*copy=*/true);
    norms.push_back(updater_->apply(step).item<double>());
    rates.push_back(updater_->lr(step));
  }
  computed["out.losses"] = at::tensor(losses, at::kDouble);
  computed["out.grad_norms"] = at::tensor(norms, at::kDouble);
  computed["out.lrs"] = at::tensor(rates, at::kDouble);
  computed["out.logits.last"] = logits();
  for (const auto& item : model_->named_parameters())
    computed["out.w." + item.key()] = item.value().detach().to(at::kCPU);
  return computed;
}

namespace {

const RegisterCase trainings({.name = "1",
                              .judge =
                                  [](const CaseFile& file, const at::Device& device,
                                     Backend backend) {
                                    TrainCase training(file, {device, backend});
                                    auto computed = training.compute();
                                    auto verdicts =
                                        judge(computed, training.expected(), training.tolerance());
                                    return Judged{std::move(computed), std::move(verdicts)};
                                  },
                              .key = "headlab_train"});

}  // namespace
}  // namespace headlab
