#include "experiments/training/update.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/torch.h"
#include "experiments/runs/experiment.h"

namespace headlab {

Schedule schedule_of(const TrainOptions& options, int64_t d_model, int64_t epoch_size) {
  Schedule schedule;
  schedule.kind = options.schedule;
  schedule.lr = options.lr;
  schedule.min_lr = options.floor();
  schedule.warmup = options.warmup.of(options.total_steps(epoch_size));
  schedule.decay = options.decays_over(epoch_size);
  schedule.d_model = d_model;
  return schedule;
}

std::string unreached_rate(const Schedule& schedule, int64_t steps) {
  const bool noam = schedule.kind == "noam";  // peaks with the last update of the warmup
  const int64_t w = schedule.warmup;
  const double peak = noam ? schedule.at(w - 1) : schedule.lr;
  double highest = 0;
  for (const int64_t step : {int64_t{0}, w - 1, w, steps - 1})
    if (step >= 0 && step < steps) highest = std::max(highest, schedule.at(step));
  if (highest >= peak * (1 - 1e-9)) return "";
  const bool cut = w >= steps;
  return fmt::format(
      "{} {} is never reached, the highest rate is {:.4g}: train.warmup takes {} updates, {} {}",
      noam ? "the peak of train.schedule noam," : "train.lr", fmt::format("{:.4g}", peak), highest,
      w, cut ? "the run ends after" : "train.decay_steps ends after", cut ? steps : schedule.decay);
}

AdamW::Settings adamw_of(const TrainOptions& options) {
  return {options.betas[0], options.betas[1],      options.eps,       options.weight_decay,
          options.gate_lr,  options.multiplier_lr, options.gates_only};
}

std::vector<Batch> micro_batches(const TrainOptions& options, const DataSource& data, uint64_t seed,
                                 int64_t step) {
  std::vector<Batch> batches;
  if (options.max_positions) {
    const auto whole = data.sized_batch(seed, step, *options.max_positions);
    const int64_t pairs = whole.examples(), parts = std::min(options.accumulate, pairs);
    for (int64_t n = 0; n < parts; ++n)
      batches.push_back(whole.part(n * pairs / parts, (n + 1) * pairs / parts));
    return batches;
  }
  const int64_t part = options.batch / options.accumulate;
  for (int64_t first = 0; first < options.batch; first += part)
    batches.push_back(data.epoch_examples() > 0
                          ? data.epoch_batch(seed, step * options.batch + first, part)
                          : data.train_batch(seed, step, first, part));
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
      task_(settings.task ? *settings.task : prediction_task()),
      optimizer_(*model_, special_parameters(*model_), adamw) {}

Updater::Part Updater::forward(int64_t draw, int64_t step, const Batch& on_host,
                               SiteProbes* probes) {
  const auto batch = on_host.to(device_);
  ModelContext ctx{
      .observer = probes, .backend = settings_.backend, .scored_only = task_.takes_scored_only()};
  if (probes) probes->tell(batch);
  ctx.rng.seed = settings_.seed;
  ctx.rng.step = static_cast<uint64_t>(draw);
  ctx.update = step;
  Autocast half(device_, settings_.bf16);
  const auto out = model_->forward(batch, ctx);
  Part part;
  part.aux = out.aux;
  if (settings_.label_smoothing == 0) {
    part.nll = task_.loss(out.logits, batch);
    return part;
  }
  part.smoothed = task_.loss(out.logits, batch, settings_.label_smoothing);
  part.nll = task_.loss(out.logits.detach(), batch);
  return part;
}

Updater::Losses Updater::pass(int64_t step, const std::vector<Batch>& micro_batches,
                              SiteProbes* probes, const PartVisitor& visit) {
  const auto parts = static_cast<int64_t>(micro_batches.size());
  std::vector<Tensor> counts;  // micro-batches may score different numbers of targets
  for (const auto& batch : micro_batches) counts.push_back(task_.scored(batch));
  const auto count = at::stack(counts).to(device_, /*non_blocking=*/true);  // [parts]
  const auto scored = count.sum().clamp_min(1);

  Losses losses;
  const auto add = [&](Tensor& to, const Tensor& sum) {
    if (!sum.defined()) return;
    const auto share = sum.detach() / scored;
    to = to.defined() ? to + share : share;
  };
  for (int64_t n = 0; n < parts; ++n) {
    // Each micro-batch draws anew.
    auto part = forward(step * parts + n, step, micro_batches[n], probes);
    part.scored = count[n];
    visit(part, scored);
    add(losses.nll, part.nll);
    add(losses.smoothed, part.smoothed);
    for (const auto& aux : part.aux) {
      const auto value = aux.value.detach();
      losses.aux.push_back(
          {aux.name, parts == 1 ? value : value * part.scored / scored, OverLayers::kSum});
    }
  }
  losses.aux = combine_aux(losses.aux);
  return losses;
}

Updater::Losses Updater::measure(int64_t step, const std::vector<Batch>& micro_batches,
                                 SiteProbes* probes) {
  at::NoGradGuard no_grad;
  return pass(step, micro_batches, probes, [](const Part&, const Tensor&) {});
}

Updater::Losses Updater::add_gradients(int64_t step, const std::vector<Batch>& micro_batches,
                                       SiteProbes* probes) {
  if (micro_batches.size() == 1)
    return pass(step, micro_batches, probes, [](const Part& part, const Tensor& scored) {
      auto mean = part.loss() / scored;
      for (const auto& loss : part.aux) mean = mean + loss.value;
      mean.backward();
    });
  // Sums go back, and are divided once by what the whole update scores, however many parts (and
  // processes) it has.
  Tensor total;
  auto losses = pass(step, micro_batches, probes, [&](const Part& part, const Tensor& scored) {
    auto sum = part.loss();
    for (const auto& loss : part.aux) sum = sum + loss.value * part.scored;
    sum.backward();
    total = scored;
  });
  at::NoGradGuard no_grad;
  for (const auto& parameter : model_->parameters())
    if (parameter.grad().defined()) parameter.mutable_grad().div_(total);
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
                              SiteProbes* probes) {
  Result result;
  result.losses = add_gradients(step, micro_batches, probes);
  result.grad_norm = apply(step);
  result.lr = lr(step);
  return result;
}

}  // namespace headlab
