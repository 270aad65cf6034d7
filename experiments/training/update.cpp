#include "experiments/training/update.h"

#include <ATen/autocast_mode.h>

#include "core/observe/probe.h"
#include "core/torch.h"
#include "experiments/runs/experiment.h"

namespace headlab {

Schedule schedule_of(const TrainOptions& options, int64_t d_model) {
  Schedule schedule;
  schedule.kind = options.schedule;
  schedule.lr = options.lr;
  schedule.min_lr = options.floor();
  schedule.warmup = options.warmup;
  schedule.decay = options.decays_over();
  schedule.d_model = d_model;
  return schedule;
}

AdamW::Settings adamw_of(const TrainOptions& options) {
  return {options.betas[0], options.betas[1],      options.eps,       options.weight_decay,
          options.gate_lr,  options.multiplier_lr, options.gates_only};
}

std::vector<Batch> micro_batches(const TrainOptions& options, const DataSource& data, uint64_t seed,
                                 int64_t step) {
  const int64_t part = options.batch / options.accumulate;
  std::vector<Batch> batches;
  for (int64_t n = 0; n < options.accumulate; ++n)
    batches.push_back(data.train_batch(seed, step, n * part, part));
  return batches;
}

Autocast::Autocast(const at::Device& device, bool bf16) : device_(device.type()), on_(bf16) {
  if (!on_) return;
  at::autocast::set_autocast_dtype(device_, at::kBFloat16);
  at::autocast::set_autocast_enabled(device_, true);
}

Autocast::~Autocast() {
  if (!on_) return;
  at::autocast::set_autocast_enabled(device_, false);
  at::autocast::clear_cache();
}

namespace {

ParameterGroups special_parameters(Model& model) {
  ParameterGroups groups;
  model.parameter_groups(groups);
  return groups;
}

}  // namespace

Updater::Updater(std::shared_ptr<Model> model, Schedule schedule, const AdamW::Settings& adamw,
                 const Settings& settings)
    : model_(std::move(model)),
      device_(model_->parameters().front().device()),
      heads_(all_heads(*model_)),
      schedule_(std::move(schedule)),
      settings_(settings),
      optimizer_(*model_, special_parameters(*model_), adamw) {}

Updater::Losses Updater::add_gradients(int64_t step, const std::vector<Batch>& micro_batches,
                                       HeadProbe* probe) {
  const auto parts = static_cast<int64_t>(micro_batches.size());
  Tensor scored;  // over the whole update: micro-batches may score different numbers of targets
  for (const auto& batch : micro_batches) {
    const auto count = scored_targets(batch.targets);
    scored = scored.defined() ? scored + count : count;
  }
  scored = scored.clamp_min(1).to(device_, /*non_blocking=*/true);

  Losses losses;
  for (int64_t part = 0; part < parts; ++part) {
    const auto ids = micro_batches[part].ids.to(device_, /*non_blocking=*/true);
    const auto targets = micro_batches[part].targets.to(device_, /*non_blocking=*/true);
    ModelContext ctx;
    ctx.observer = probe;
    if (probe) probe->tokens = ids;
    ctx.rng.seed = settings_.seed;
    ctx.rng.step = static_cast<uint64_t>(step * parts + part);  // each micro-batch draws anew
    ctx.update = step;
    Tensor total;
    {
      Autocast half(device_, settings_.bf16);
      const auto out = model_->forward(ids, ctx);
      total = cross_entropy_sum(out.logits, targets, settings_.label_smoothing) / scored;
      const auto task = total.detach();
      losses.task = losses.task.defined() ? losses.task + task : task;
      for (const auto& aux : out.aux) {
        const auto share = aux.value / static_cast<double>(parts);
        total = total + share;
        losses.aux.push_back({aux.name, share.detach(), OverLayers::kSum});
      }
    }
    total.backward();
  }
  losses.aux = combine_aux(losses.aux);
  return losses;
}

Tensor Updater::apply(int64_t step) {
  at::NoGradGuard no_grad;
  const auto norm = optimizer_.gradient_norm();
  if (settings_.clip > 0) optimizer_.clip(norm, settings_.clip);
  optimizer_.step(lr(step));
  optimizer_.zero_grad();
  for (auto* heads : heads_) (*heads)->after_step();
  return norm;
}

Updater::Result Updater::step(int64_t step, const std::vector<Batch>& micro_batches,
                              HeadProbe* probe) {
  Result result;
  result.losses = add_gradients(step, micro_batches, probe);
  result.grad_norm = apply(step);
  result.lr = lr(step);
  return result;
}

}  // namespace headlab
